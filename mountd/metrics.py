"""What Prometheus may know of a mount: its status as metrics, on a port of this machine. No label names a release, a
job, a user or a file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from openshelf.errors import UsageError

_logger = logging.getLogger(__name__)

Status = Callable[[], Mapping[str, Any]]

_COUNTERS: Mapping[str, str] = {
    "requests": "Requests of the kernel answered.",
    "lookups": "Names looked up.",
    "reads_served": "READ requests answered by the daemon.",
    "bytes_served": "Bytes handed to the kernel in answer to READ requests.",
    "read_errors": "READ requests that failed.",
    "resent": "Requests that the kernel sent again after a worker's end.",
    "restarts": "Workers that were replaced.",
    "takeovers": "Times that the mount went to another supervisor.",
    "evictions": "Files evicted from the cache.",
    "chunks_corrupt": "Chunks that came with wrong bytes.",
    "reads_timed_out": "Reads whose bytes did not come before the deadline.",
    "fetch_requests": "Requests to any source.",
    "fetch_retries": "Requests repeated after a failure.",
    "fetch_hedged": "Second requests sent because the first was slow.",
    "bytes_fetched": "Bytes received from all sources.",
    "opens_lost": "Times that the queue of opens of materialised releases ran over.",
    "files_reverified": "Cached files hashed again.",
    "files_damaged": "Cached files whose bytes had changed.",
    "ledger_delivered": "Records of opens that the catalog has taken.",
    "ledger_dropped": "Records of opens that were lost or refused.",
    "ledger_unrecorded": "Opens that a killed worker had not written down.",
    "breaker_open": "Times that a source was left alone after failures.",
}
_GAUGES: Mapping[str, str] = {
    "cache_bytes": "Bytes in the cache.",
    "cache_limit_bytes": "Most bytes in the cache.",
    "cache_files": "Files in the cache.",
    "releases": "Releases listed.",
    "releases_materialised": "Releases that the node's own file system serves.",
    "open_files": "Files open now.",
    "waiting": "Requests that the kernel waits for.",
    "feed_serial": "Position in the feed.",
    "stale": "1 when what is shown may be out of date.",
    "online": "1 when the catalog answers.",
    "passthrough": "1 when the kernel reads sealed files itself.",
    "uptime_s": "Seconds since the mount was made.",
    "worker_anonymous_bytes": "Memory of the worker, mappings of files apart.",
    "disks_out": "Cache disks that were taken out.",
    "ledger_waiting": "Records of opens that wait for the catalog.",
}
_LABELLED: Mapping[str, tuple[str, str, str]] = {
    "opens_": ("opens", "tier", "Files opened."),
    "bytes_from_": ("source_bytes", "source", "Bytes received, by kind of source."),
}
_TIERS = ("passthrough", "served", "materialised")
_BUCKET = re.compile(r"chunk_latency_le_(\d+)")
_LATENCY = "chunk_latency"


class MountCollector(Collector):
    """The status of one mount as metric families."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All families whose figures the status has."""
        status = self._status()
        for name, text in _COUNTERS.items():
            if isinstance(status.get(name), int):
                yield CounterMetricFamily(f"openshelf_mount_{name}", text, value=status[name])
        for name, text in _GAUGES.items():
            if isinstance(status.get(name), int | float):
                yield GaugeMetricFamily(f"openshelf_mount_{name}", text, value=float(status[name]))
        for prefix, (family, label, text) in _LABELLED.items():
            metric = CounterMetricFamily(f"openshelf_mount_{family}", text, labels=[label])
            for name in sorted(status):
                kind = name.removeprefix(prefix)
                if name.startswith(prefix) and (prefix != "opens_" or kind in _TIERS):
                    metric.add_metric([kind], status[name])
            yield metric
        yield from _latency(status)


def _latency(status: Mapping[str, Any]) -> Iterator[Metric]:
    """How long chunks took, when the status has ``chunk_latency_le_<ms>`` (each counts all that took no longer),
    ``chunk_latency_count`` and ``chunk_latency_ms``."""
    bounds = sorted(int(found.group(1)) for found in map(_BUCKET.fullmatch, status) if found)
    if not bounds:
        return
    total = status.get(f"{_LATENCY}_count", 0)
    buckets = [(str(bound / 1000), float(status[f"{_LATENCY}_le_{bound}"])) for bound in bounds]
    yield HistogramMetricFamily(
        "openshelf_mount_chunk_seconds",
        "Time from asking for a chunk to its being checked.",
        buckets=[*buckets, ("+Inf", float(total))],
        sum_value=status.get(f"{_LATENCY}_ms", 0) / 1000,
    )


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` apart (an IPv6 host in brackets). Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            "bad_option", f"The mount option metrics is {text!r}", "Write HOST:PORT, such as 127.0.0.1:9469."
        )
    return host.strip("[]"), int(port)


def serve(where: str, status: Status) -> None:
    """Answer Prometheus at ``where``, in threads of their own, until the process ends; a port that is taken is said
    in the log: a mount does without its metrics rather than not at all."""
    host, port = address(where)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MountCollector(status))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        _logger.error("metrics cannot be served at %s: %s", where, error.strerror)
