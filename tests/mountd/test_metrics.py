"""The status of a mount as Prometheus text, read back with the client library's own parser."""

from __future__ import annotations

import socket
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mountd.metrics import address, serve
from openshelf.errors import UsageError
from tests.support.plain_mount import PlainMount

STATUS = {
    "mountpoint": "/public",
    "opens_passthrough": 7,
    "opens_served": 2,
    "opens_lost": 1,
    "bytes_from_site_cache": 100,
    "bytes_from_store": 5,
    "restarts": 3,
    "online": True,
    "waiting": None,
    "uptime_s": 1.5,
    "chunk_latency_le_10": 4,
    "chunk_latency_le_100": 9,
    "chunk_latency_count": 10,
    "chunk_latency_ms": 1500,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_gauges_and_the_histogram_have_the_status_values() -> None:
    port = free_port()
    status = dict(STATUS)
    serve(f"127.0.0.1:{port}", lambda: status)
    found = scrape(port)
    assert found["openshelf_mount_opens_total", (("tier", "passthrough"),)] == 7
    assert found["openshelf_mount_opens_total", (("tier", "served"),)] == 2
    assert ("openshelf_mount_opens_total", (("tier", "lost"),)) not in found
    assert found["openshelf_mount_opens_lost_total", ()] == 1
    assert found["openshelf_mount_source_bytes_total", (("source", "site_cache"),)] == 100
    assert found["openshelf_mount_restarts_total", ()] == 3
    assert found["openshelf_mount_online", ()] == 1
    assert not [name for name, _ in found if "waiting" in name]  # not known is not nought
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("seconds_bucket")}
    assert buckets == {"0.01": 4, "0.1": 9, "+Inf": 10}
    assert found["openshelf_mount_chunk_seconds_sum", ()] == 1.5
    status["restarts"] = 4
    assert scrape(port)["openshelf_mount_restarts_total", ()] == 4


def test_a_port_that_is_taken_is_only_said(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        serve(f"127.0.0.1:{taken.getsockname()[1]}", dict)
    assert "metrics cannot be served" in caplog.text


@pytest.mark.parametrize("text", ["9469", ":9469", "host:", "host:99999", "host:http"])
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="metrics"):
        address(text)


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert address("[::1]:9469") == ("::1", 9469)


def test_a_mount_answers_prometheus_and_its_next_worker_too(tmp_path: Path) -> None:
    port = free_port()
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_bytes(b"a")
    with PlainMount(tmp_path, source, metrics=f"127.0.0.1:{port}") as mount:
        assert (mount.mountpoint / "a.txt").read_bytes() == b"a"
        assert scrape(port)["openshelf_mount_opens_total", (("tier", "passthrough"),)] == 1
        killed = mount.kill_worker()
        mount.wait_for_worker(other_than=killed)
        deadline = time.monotonic() + 20
        while True:
            try:
                assert scrape(port)["openshelf_mount_restarts_total", ()] == 1
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
