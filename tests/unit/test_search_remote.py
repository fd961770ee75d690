"""An embedding service over HTTP: what it should say, and everything else it might."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import EmbedderUnavailable, embedder_for
from alcove.search.embedders.openai import RemoteEmbedder, remote_embedder

Answer = Callable[[dict[str, object]], tuple[int, bytes]]


class Service:
    """A server whose answer a test sets."""

    def __init__(self) -> None:
        self.answer: Answer = good
        self.asked: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(body)
                service.headers.append(dict(self.headers))
                service.paths.append(self.path)
                status, answer = service.answer(body)
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1#tiny"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def good(body: dict[str, object]) -> tuple[int, bytes]:
    texts = body["input"]
    assert isinstance(texts, list)
    rows = [{"index": n, "embedding": [len(text), 1, 0]} for n, text in enumerate(texts)]
    return 200, json.dumps({"data": rows[::-1]}).encode()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def test_vectors_come_in_the_order_of_the_texts(service: Service) -> None:
    embedder = RemoteEmbedder(service.url, key="secret")
    rows = embedder.embed(["a", "bb" * 50] * 50)
    assert rows.shape == (100, 3)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert np.allclose(rows[0], [0.5**0.5, 0.5**0.5, 0])
    assert embedder.dimensions == 3
    assert [len(str(each["input"])) > 0 for each in service.asked] == [True, True]
    assert service.headers[0]["Authorization"] == "Bearer secret"


def test_a_service_is_named_by_its_model(service: Service) -> None:
    embedder = embedder_for(service.url + "&dimensions=3", timeout=5)
    assert embedder
    assert (embedder.name, embedder.dimensions) == ("tiny/3", 3)
    assert embedder.embed([""]).shape == (1, 3)
    assert service.asked[0]["dimensions"] == 3
    assert service.asked[0]["input"] == [" "]
    assert embedder.embed([]).shape == (0, 3)


def test_ollama_is_named_by_its_model_and_says_what_to_pull(service: Service) -> None:
    host = service.url.removeprefix("http://").partition("/")[0]
    embedder = embedder_for(f"ollama://{host}/nomic-embed-text:v1.5&dimensions=3")
    assert embedder
    assert embedder.name == "nomic-embed-text:v1.5/3"
    assert embedder.embed(["tea"]).shape == (1, 3)
    assert (service.asked[0]["model"], service.paths) == ("nomic-embed-text:v1.5", ["/v1/embeddings"])
    service.answer = lambda _: (404, b'{"error": {"message": "model not found, try pulling it first"}}')
    with pytest.raises(EmbedderUnavailable, match=r"run `ollama pull nomic-embed-text:v1\.5` there"):
        embedder.embed(["tea"])


def test_ollama_is_on_this_machine_and_at_its_own_port_unless_another_is_named() -> None:
    for spec, place in {
        "ollama:all-minilm": "127.0.0.1:11434",
        "ollama://box/all-minilm": "box:11434",
        "ollama://box:80/hf.co/some/model": "box:80",
        "ollama://[::1]/all-minilm": "[::1]:11434",
    }.items():
        assert remote_embedder(spec).url == f"http://{place}/v1/embeddings"


@pytest.mark.parametrize(
    "spec",
    ["ollama:", "ollama://", "ollama://host", "ollama:///m", "openai:", "http://[x/v1#m", "ollama://x:y/m"],
)
def test_a_name_without_its_model_or_place_is_refused(spec: str) -> None:
    with pytest.raises(InvalidRequest, match="embedder"):
        embedder_for(spec, key="secret")


def test_openai_needs_a_key_which_may_be_in_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidRequest, match=r"embedder_key.*OPENAI_API_KEY"):
        embedder_for("openai:text-embedding-3-small")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    embedder = embedder_for("openai:text-embedding-3-small&dimensions=256")
    assert embedder
    assert (embedder.name, embedder.dimensions) == ("text-embedding-3-small/256", 256)


def _rows(*rows: object) -> bytes:
    return json.dumps({"data": [{"index": n, "embedding": row} for n, row in enumerate(rows)]}).encode()


BAD = {
    "an error": (500, b"{}"),
    "a refusal": (401, b"{}"),
    "a redirect": (302, b""),
    "nothing": (200, b""),
    "no JSON": (200, b"<html>"),
    "another shape": (200, b'{"data": 3}'),
    "a list": (200, b"[]"),
    "too few": (200, _rows()),
    "too many": (200, _rows([1, 2, 3], [1, 2, 3])),
    "words": (200, _rows(["a", "b", "c"])),
    "NaN": (200, _rows([float("nan"), 1, 2])),
    "infinity": (200, _rows([1e39, 1, 2])),
    "huge": (200, _rows([1e38, 1e38, 1e38], [1])),
    "no direction": (200, _rows([0, 0, 0])),
    "no dimensions": (200, _rows([])),
    "nested": (200, b"[" * 100_000),
    "a number": (200, _rows(3)),
}


@pytest.mark.parametrize("what", BAD)
def test_garbage_is_one_clear_error(service: Service, what: str) -> None:
    service.answer = lambda _: BAD[what]
    with pytest.raises(EmbedderUnavailable) as caught:
        RemoteEmbedder(service.url).embed(["text"])
    assert caught.value.code == "service_unavailable"
    assert len(service.asked) == 1


def test_a_change_of_dimensions_is_refused_and_the_next_good_answer_is_taken(service: Service) -> None:
    embedder = RemoteEmbedder(service.url)
    embedder.embed(["text"])
    service.answer = lambda _: (200, _rows([1, 2]))
    with pytest.raises(EmbedderUnavailable, match="2 dimensions where 3"):
        embedder.embed(["text"])
    service.answer = good
    assert embedder.embed(["text"]).shape == (1, 3)


def test_a_slow_service_is_given_up(service: Service) -> None:
    def slow(_: dict[str, object]) -> tuple[int, bytes]:
        time.sleep(0.5)
        return 200, b""

    service.answer = slow
    with pytest.raises(EmbedderUnavailable, match=r"did not answer in 0\.1 s"):
        RemoteEmbedder(service.url, timeout=0.1).embed(["text"])


def test_a_service_that_is_down_is_said_to_be() -> None:
    with pytest.raises(EmbedderUnavailable, match="cannot be reached"):
        RemoteEmbedder("http://127.0.0.1:1/v1#tiny").embed(["text"])
