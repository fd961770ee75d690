"""Traces: a span for each request, received as any collector would receive it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from alcove.core.errors import MissingExtra
from alcove.server import startup
from alcove.server.config import ServeConfig
from tests.support.service import free_port, serving
from tests.support.store_inspection import locked
from tests.support.waiting import until

MINE = ["user", "noop"]
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ALLOWED = {"http.request.method", "http.route", "http.response.status_code", "error.type"}


class Collector:
    """Where spans are sent to, and what came."""

    def __init__(self) -> None:
        collector = self
        self.received: list[bytes] = []

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def env(self, milliseconds: int = 20, **more: str) -> dict[str, str]:
        """The variables that send spans here, this often."""
        here = f"http://127.0.0.1:{self.http.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": here, "OTEL_BSP_SCHEDULE_DELAY": str(milliseconds), **more}

    @property
    def services(self) -> set[str]:
        batches = [each for raw in self.received for each in _decoded(raw).resource_spans]
        return {
            attribute.value.string_value
            for batch in batches
            for attribute in batch.resource.attributes
            if attribute.key == "service.name"
        }

    def spans(self, route: str | None = "/v1/memories") -> list[Span]:
        """The spans of a route, oldest first; those of what is not there without one."""
        found = [
            span
            for raw in self.received
            for batch in _decoded(raw).resource_spans
            for scope in batch.scope_spans
            for span in scope.spans
        ]
        chosen = [span for span in found if attributes(span).get("http.route") == route]
        return sorted(chosen, key=lambda span: span.start_time_unix_nano)

    def wait_for(self, count: int, route: str | None = "/v1/memories") -> list[Span]:
        """The same, once there are this many."""
        until(lambda: len(self.spans(route)) >= count)
        return self.spans(route)


def _decoded(raw: bytes) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    request.ParseFromString(raw)
    return request


def attributes(span: Span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.http.shutdown()
    collector.http.server_close()


def test_each_request_is_a_span_with_method_route_and_status(tmp_path: Path, collector: Collector) -> None:
    with serving(tmp_path, "--tracing", env=collector.env()) as service:
        service.put(MINE, "key", {"n": 1})
        service.get(MINE, "key")
        service.get(MINE, "absent")
        service.call("PURGE", "/v1/memories")
        service.call("GET", "/nothing/here")
        put, get, absent, purge = collector.wait_for(4)
        (unknown,) = collector.wait_for(1, route=None)
    route = {"http.route": "/v1/memories"}
    assert attributes(put) == {**route, "http.request.method": "PUT", "http.response.status_code": 200}
    assert attributes(get) == {**route, "http.request.method": "GET", "http.response.status_code": 200}
    assert attributes(absent) == {**route, "http.request.method": "GET", "http.response.status_code": 404}
    assert attributes(purge) == {**route, "http.request.method": "_OTHER", "http.response.status_code": 405}
    assert attributes(unknown) == {"http.request.method": "GET", "http.response.status_code": 404}
    assert [each.name for each in (put, purge, unknown)] == ["PUT /v1/memories", "HTTP /v1/memories", "GET"]
    for each in (put, get, absent, purge, unknown):
        assert each.kind == Span.SPAN_KIND_SERVER
        assert not each.parent_span_id
        assert each.status.code == Status.STATUS_CODE_UNSET
        assert each.start_time_unix_nano < each.end_time_unix_nano
    assert len({each.trace_id for each in (put, get, absent)}) == 3
    assert collector.services == {"alcove"}


def test_the_trace_of_the_caller_is_continued(tmp_path: Path, collector: Collector) -> None:
    with serving(tmp_path, "--tracing", env=collector.env()) as service:
        given = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
        service.get(MINE, "key", headers=given)
        (span,) = collector.wait_for(1)
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == CALLER
    assert span.trace_state == "vendor=1"


def test_a_caller_that_is_not_recorded_is_not_recorded_here_and_a_broken_header_is_no_trace(
    tmp_path: Path, collector: Collector
) -> None:
    with serving(tmp_path, "--tracing", env=collector.env()) as service:
        service.get(MINE, "key", headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
        for broken in ("", "00-xyz", f"00-{'0' * 32}-{CALLER}-01", "00-" + "z" * 52):
            answer = service.get(MINE, "key", headers={"traceparent": broken})
            assert answer.status_code == 404
        spans = collector.wait_for(4)
    assert all(span.trace_id.hex() != TRACE and not span.parent_span_id for span in spans)


def test_no_content_and_no_query_leaves_in_a_span(tmp_path: Path, collector: Collector) -> None:
    with serving(tmp_path, "--tracing", env=collector.env()) as service:
        service.put([*MINE, "zebra-room"], "zebra-key", {"text": "zebra-value"}, headers={"x-zebra": "zebra"})
        service.get([*MINE, "zebra-room"], "zebra-key")
        service.call("GET", "/v1/memories", params={"zebra": "zebra"})
        service.call("GET", "/zebra")
        spans = collector.wait_for(3)
        collector.wait_for(1, route=None)
    assert not [raw for raw in collector.received if b"zebra" in raw]
    assert all(set(attributes(span)) <= ALLOWED and not span.events for span in spans)


def test_an_error_of_ours_is_an_error_in_the_trace(tmp_path: Path, collector: Collector) -> None:
    with serving(tmp_path, "--tracing", "--busy-timeout", 0.05, env=collector.env()) as service:
        with locked(service.at):
            assert service.put(MINE, "key", {"n": 1}).status_code == 503
        (span,) = collector.wait_for(1)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == "503"


def test_a_stopping_service_sends_what_it_has_of_every_worker(tmp_path: Path, collector: Collector) -> None:
    env = collector.env(3_600_000, OTEL_SERVICE_NAME="rooms")
    with serving(tmp_path, "--tracing", "--workers", 2, env=env) as service:
        for n in range(20):
            service.put(MINE, f"key-{n}", {"n": n})
        assert collector.received == []
        service.signal()
        assert service.wait() == 0
    assert len(collector.spans()) == 20
    assert collector.services == {"rooms"}


def test_a_collector_that_is_not_there_holds_nothing_up(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with serving(tmp_path, "--tracing", env=env) as service:
        assert service.put(MINE, "key", {"n": 1}).status_code == 200
        service.signal()
        service.wait()
        assert service.lines[-1]["event"] != "Shutting down"


def test_nothing_is_sent_or_imported_unless_it_is_asked_for(tmp_path: Path, collector: Collector) -> None:
    with serving(tmp_path, env=collector.env()) as service:
        service.put(MINE, "key", {"n": 1})
        service.signal()
        service.wait()
    assert collector.received == []
    program = (
        "import sys; from alcove.server.config import ServeConfig; from alcove.server.startup import build\n"
        f"build(ServeConfig(at={str(tmp_path / 'other.db')!r}))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tracing_without_its_packages_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "alcove.server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(MissingExtra, match=r"\.\[tracing\]"):
        startup.check(ServeConfig(tracing=True))
    startup.check(ServeConfig())
