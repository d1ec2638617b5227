"""What a service counts and measures, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from siglum.serve.batcher import BatcherEvents

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """The figures of one service, in a registry of their own."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "siglum"}
        self.requests = Counter("requests", "Requests answered.", ["endpoint", "status"], **own)  # type: ignore[arg-type]
        self.seconds = Histogram("request_seconds", "Time of a request.", ["endpoint"], buckets=SECONDS, **own)  # type: ignore[arg-type]
        self.open = Gauge("requests_open", "Requests that are being answered.", **own)  # type: ignore[arg-type]
        self.batches = Histogram("batch_queries", "Queries the engine took at once.", buckets=SIZES, **own)  # type: ignore[arg-type]
        self.waited = Histogram("queue_seconds", "Longest wait in a batch.", buckets=SECONDS, **own)  # type: ignore[arg-type]
        self.engine = Histogram("engine_seconds", "Time of the engine for a batch.", buckets=SECONDS, **own)  # type: ignore[arg-type]
        self.expired = Counter("expired", "Requests that waited beyond their time.", **own)  # type: ignore[arg-type]
        self.refused = Counter("refused", "Requests that found the queue full.", **own)  # type: ignore[arg-type]
        self.added = Counter("items_added", "Items added.", **own)  # type: ignore[arg-type]
        self.removed = Counter("items_removed", "Items removed.", **own)  # type: ignore[arg-type]
        self.reloads = Counter("reloads", "Runs swapped in.", ["outcome"], **own)  # type: ignore[arg-type]
        self.decoders = Counter("decoder_restarts", "Picture decoders that had to be replaced.", **own)  # type: ignore[arg-type]
        self._items = Gauge("items", "Items in the index.", **own)  # type: ignore[arg-type]
        self._queue = Gauge("queue_queries", "Queries that wait.", **own)  # type: ignore[arg-type]

    def watch(self, items: Callable[[], float], queue: Callable[[], float]) -> None:
        """Ask for the number of items and of waiting queries when somebody reads the figures."""
        self._items.set_function(items)
        self._queue.set_function(queue)

    def events(self) -> BatcherEvents:
        """Return what the batcher tells its figures to."""

        def taken(size: int, waited: float) -> None:
            self.batches.observe(size)
            self.waited.observe(waited)

        return BatcherEvents(taken, self.engine.observe, self.expired.inc, self.refused.inc)

    def text(self) -> bytes:
        """Return all figures in the format of Prometheus."""
        return generate_latest(self.registry)
