"""Figures of the service for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator.metrics import Info

OTHER = "other"  # one label for whatever a client makes up
METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())


class Metrics:
    """The counters of one service, in a registry of its own."""

    def __init__(self, requests_in_progress: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "captioner_requests_total",
            "Requests answered",
            ["method", "path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "captioner_request_seconds",
            "From a request's arrival to the end of its answer",
            ["path"],
            registry=self.registry,
        )
        self.batch_sizes = Histogram(
            "captioner_batch_photos",
            "Photos in a pass of the model",
            buckets=(1, 2, 4, 8, 12, 16),
            registry=self.registry,
        )
        self.refused = Counter(
            "captioner_requests_refused_total",
            "Requests turned away because too many were waiting",
            registry=self.registry,
        )
        in_progress = Gauge(
            "captioner_requests_in_progress",
            "Photos being read or waited for",
            registry=self.registry,
        )
        in_progress.set_function(requests_in_progress)

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self.registry)

    def instrument(self, app: FastAPI) -> None:
        """Count the app's responses by method, route and status."""
        instrumentator = Instrumentator(
            should_group_status_codes=False, should_group_untemplated=True, registry=self.registry
        )

        def count(info: Info) -> None:
            path = OTHER if info.modified_handler == "none" else info.modified_handler
            method = info.method if path != OTHER and info.method in METHODS else OTHER
            self.requests.labels(method, path, info.modified_status).inc()
            self.seconds.labels(path).observe(info.modified_duration)

        instrumentator.add(count).instrument(app)
