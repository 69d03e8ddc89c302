"""Numbers of a server, as Prometheus reads them."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["ServerMetrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Counts of one server, apart from all others in the process.

    Args:
        waiting: gives the number of items that wait now.
    """

    def __init__(self, waiting: Callable[[], int]):
        self.registry = CollectorRegistry()
        prefix = "vanilla_transformer"
        self.requests = Counter(f"{prefix}_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            f"{prefix}_seconds", "Seconds of a request.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self.items = Counter(f"{prefix}_items", "Texts and parts of texts computed.", registry=self.registry)
        self.tokens = Counter(f"{prefix}_generated_tokens", "Tokens generated.", registry=self.registry)
        self.batches = Histogram(f"{prefix}_batch_items", "Items of a batch.", buckets=SIZES, registry=self.registry)
        Gauge(f"{prefix}_waiting_items", "Items that wait for the model.", registry=self.registry).set_function(
            waiting
        )

    def count_batch(self, items: int) -> None:
        self.batches.observe(items)
        self.items.inc(items)

    def to_text(self) -> bytes:
        return generate_latest(self.registry)
