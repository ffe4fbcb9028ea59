"""Two nodes in network namespaces of their own behind one site cache; neither can reach the object store."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from catalog.names import parse_release
from tests.support.catalog_server import catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.s3_server import BUCKET, S3Server
from tests.support.site_cache import site_cache

REF = parse_release("datasets/shared/corpus@1.0")
FILES = {
    "data/a.bin": random.Random(1).randbytes(9_000_001),
    "data/b.bin": random.Random(2).randbytes(5_000_000),
    **{f"images/{number:03}.jpg": random.Random(number).randbytes(3000) for number in range(50)},
}
SITE = "10.213.7.1"
NODES = {"a": ("10.213.7.1/30", "10.213.7.2/30"), "b": ("10.213.7.5/30", "10.213.7.6/30")}
"""Address of this end and of the node's end of each cable."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def networks() -> Iterator[dict[str, str]]:
    """Node → the network namespace that it is in."""
    names = {node: f"openshelf-{node}-{os.getpid()}" for node in NODES}
    with ExitStack() as stack:
        for node, (here, there) in NODES.items():
            name, cable = names[node], f"osh{node}{os.getpid() % 100_000}"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", cable, "type", "veth", "peer", "name", "up0", "netns", name)
            ip("addr", "add", here, "dev", cable)
            ip("link", "set", cable, "up")
            ip("-n", name, "addr", "add", there, "dev", "up0")
            ip("-n", name, "link", "set", "up0", "up")
            ip("-n", name, "route", "add", "default", "via", here.partition("/")[0])
        yield names


def digests(mount: RealMount) -> dict[str, str]:
    """SHA-256 of every file, read through the mount."""
    folder = mount.mountpoint / "datasets" / "shared" / "corpus" / "1.0"
    return {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in FILES}


def test_what_one_node_has_read_another_reads_without_the_store(networks: dict[str, str], tmp_path: Path) -> None:
    expected = {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}
    with ExitStack() as stack:
        server = stack.enter_context(S3Server.start(tmp_path / "s3"))
        catalog = stack.enter_context(
            catalog_process(tmp_path / "data", host=SITE, objects=f"s3://{BUCKET}/o", environ=server.environment())
        )
        publisher = Publisher(catalog, tmp_path)
        stack.callback(publisher.close)
        publisher.publish(REF, FILES)
        store = server.endpoint.removeprefix("http://")
        site = stack.enter_context(site_cache(tmp_path / "nginx", catalog.url.removeprefix("http://"), store, SITE))
        mounts = {
            node: stack.enter_context(
                RealMount(
                    tmp_path / node,
                    catalog.url,
                    catalog.token(f"node-{node}", "node"),
                    network=network,
                    OPENSHELF_PROXIES=site.url,
                )
            )
            for node, network in networks.items()
        }
        assert digests(mounts["a"]) == expected
        server.stop()
        assert digests(mounts["b"]) == expected
        for mount in mounts.values():
            status = mount.status()
            assert status["bytes_from_site_cache"] >= sum(map(len, FILES.values()))
            assert status["read_errors"] == status.get("bytes_from_store", 0) == 0
