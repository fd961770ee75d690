"""A span for each request, sent over OTLP; imported only where `--tracing` asks for it.

Where spans go, how many are kept and what the service is called is said by OpenTelemetry's own variables
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`).
"""

from __future__ import annotations

import threading

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from alcove.server.application import METHODS, UNKNOWN, Exchange

_HEADERS = ("traceparent", "tracestate")
_SERVER_ERRORS = 500
_LAST_SECONDS = 2.0


class Tracing:
    """Watches requests and tells of each: method, declared path and status, never a query or a content."""

    def __init__(self) -> None:
        named = Resource({"service.name": "alcove"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("alcove.http")
        self._continued = TraceContextTextMapPropagator()
        self._open: dict[Exchange, Span] = {}

    def began(self, exchange: Exchange) -> None:
        method = exchange.scope["method"]
        method = method if method in METHODS else "_OTHER"
        attributes = {"http.request.method": method}
        name = "HTTP" if method == "_OTHER" else method
        if exchange.path != UNKNOWN:
            attributes["http.route"] = exchange.path
            name = f"{name} {exchange.path}"
        self._open[exchange] = self._tracer.start_span(
            name, self._caller(exchange), kind=SpanKind.SERVER, attributes=attributes
        )

    def ended(self, exchange: Exchange) -> None:
        span = self._open.pop(exchange)
        span.set_attribute("http.response.status_code", exchange.status)
        if exchange.status >= _SERVER_ERRORS:
            span.set_attribute("error.type", str(exchange.status))
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Sends what was not sent yet; a collector that is not there holds the end up no longer than this."""
        enough = threading.Timer(_LAST_SECONDS, self._exporter.shutdown)
        enough.start()
        self._provider.shutdown()
        enough.cancel()

    def _caller(self, exchange: Exchange) -> Context:
        """The caller's trace; a header that is not one begins a new trace."""
        given = {name: exchange.headers.get(name.encode(), b"").decode("latin-1") for name in _HEADERS}
        return self._continued.extract(given, Context())
