"""What Prometheus may know. No label names a person, a collection or a token."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """The counters of one running catalog, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "catalog_http_request_duration_seconds",
            "Time until the last byte of the answer.",
            ("route", "method", "code"),
            registry=self.registry,
        )
        self.received = Counter("catalog_upload_bytes", "Bytes of objects received.", registry=self.registry)
        self.sent = Counter("catalog_download_bytes", "Bytes of objects and manifests sent.", registry=self.registry)
        self.waiting = Gauge("catalog_feed_waiters", "Requests that wait for the feed.", registry=self.registry)
        self.feed_serial = Gauge("catalog_feed_serial", "Serial of the last event.", registry=self.registry)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
