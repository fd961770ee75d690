"""A span for each request, sent over OTLP; imported only with `--tracing`.

OpenTelemetry's own variables set the collector, the sampling and the name of the service
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`).
"""

from __future__ import annotations

import threading
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from alcove.server.application import METHODS, UNKNOWN
from alcove.server.routes import Request

_HEADERS = ("traceparent", "tracestate")
_LAST_SECONDS = 2.0


class Tracing:
    """Sends a span for each request: method, declared path and status, never a query or a content."""

    def __init__(self) -> None:
        resource = Resource({"service.name": "alcove"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("alcove.http")
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, request: Request) -> None:
        """Records a request whose answer is ready, as a span that began with the request."""
        method, name = request.method, request.method
        if method not in METHODS:
            method, name = "_OTHER", "HTTP"
        attributes: dict[str, str | int] = {"http.request.method": method}
        if request.route != UNKNOWN:
            attributes["http.route"] = request.route
            name = f"{name} {request.route}"
        attributes["http.response.status_code"] = request.status
        if failed := request.status >= 500:
            attributes["error.type"] = str(request.status)
        carrier = {name: request.headers.get(name.encode(), b"").decode("latin-1") for name in _HEADERS}
        caller = self._propagator.extract(carrier, Context())  # a header that is no trace begins a new one
        now = time.time_ns()
        span = self._tracer.start_span(
            name,
            caller,
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=now - int((time.perf_counter() - request.started) * 1e9),
        )
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(now)

    def close(self) -> None:
        """Sends the last spans; waits at most two seconds for a collector that does not answer."""
        timer = threading.Timer(_LAST_SECONDS, self._exporter.shutdown)
        timer.start()
        self._provider.shutdown()
        timer.cancel()
