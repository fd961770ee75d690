"""What comes before a request is one: heads without end, and what is no HTTP."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse

import pytest

from tests.support.service import Service
from tests.support.store_inspection import locked
from tests.support.waiting import PATIENCE, until


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100 * 1024 + b"\r\n\r\n",
        b"GET /" + b"x" * 100 * 1024 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"this is no request\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["header", "path", "headers", "words", "line", "tls"],
)
def test_a_head_that_is_no_head_is_refused_in_the_shape_of_every_error(service: Service, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as one:
        one.sendall(sent)
        answer = HTTPResponse(one)
        answer.begin()
        body = json.loads(answer.read())
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    assert (body["code"], body["request_id"]) == ("invalid_request", answer.headers["x-request-id"])


def test_who_leaves_with_requests_waiting_behind_one_leaves_no_error_in_the_log(service: Service) -> None:
    """The fixture looks for stacks in the log."""
    before = service.log.count('"error"')
    with locked(service.at), socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as one:
        put = b'{"namespace": ["user", "noop"], "key": "k", "value": {}}'
        head = b"PUT /v1/memories HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: left-behind\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(put)
        one.sendall((head + put) * 2)
        until(lambda: service.gauge("alcove_requests_in_flight") == 2)
    service.requests("left-behind")
    assert service.look().status_code == 200
    assert service.log.count('"error"') == before
