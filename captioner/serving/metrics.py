"""What the service counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """A registry of its own, so that two services in one process do not mix."""

    def __init__(self) -> None:
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
        self.batches = Histogram(
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
        self._inside = Gauge(
            "captioner_requests_in_progress",
            "Photos being read or waited for",
            registry=self.registry,
        )

    def watch(self, inside: Callable[[], int]) -> None:
        self._inside.set_function(inside)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class MeasureRequests:
    """Middleware that counts answers by method, route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            # The route's own pattern: whatever else a stranger asks for is one label, not millions.
            path = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if path != "other" else "other"
            self.metrics.requests.labels(method, path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
