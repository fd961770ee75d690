"""What comes before a request is one: heads without end, and what is no HTTP."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse

import pytest

from tests.acceptance.patience import PATIENCE
from tests.acceptance.service import Service


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
