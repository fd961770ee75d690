"""Search over REST and at a terminal: odd questions, faults, and a model that is loaded only when needed."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from alcove.client import connect
from tests.support.command import Command
from tests.support.embeddings import embeddings
from tests.support.service import Service, alcove, assert_error, serving
from tests.support.waiting import until

ODD = [
    *('"', "*", "NEAR", "-", "a* OR b", "NEAR(a b, 3)", '"unclosed', "-tea", "(", "^tea", "tea:rain", "%"),
    *("🍵", "🍵🌧️", "\0", "'; DROP TABLE versions; --", "\u202e", "茶が好き", "?" * 1000),
]
TEXTS = {"tea": "I drink green tea every morning", "car": "My car is red", "rome": "We fly to Rome in May"}


def write(service: Service, room: list[str]) -> None:
    for key, text in TEXTS.items():
        body = {"namespace": room, "key": key, "value": {"text": text}, "index": {"text": text}}
        answer = service.call("PUT", "/v1/memories", json={**body, "wait_for_index": True})
        assert answer.status_code == 200, answer.text


def search(service: Service, room: list[str], query: str, **more: object) -> httpx.Response:
    body = {"namespace_prefix": room, "query": query, **more}
    return service.call("POST", "/v1/memories/search", json=body)


def test_who_waits_for_the_index_finds_by_meaning_at_once(service: Service, room: list[str]) -> None:
    write(service, room)
    answer = search(service, room, "What beverage do you like?", mode="semantic").json()
    assert "degraded" not in answer
    assert answer["items"][0]["key"] == "tea"
    assert all(0 <= item["score"] <= 1 for item in answer["items"])
    explained = search(service, room, "green tea", explain=True).json()["items"][0]["explain"]
    assert explained["words"]["rank"] == explained["meaning"]["rank"] == 1
    assert explained["words"]["rules"].keys() == {"levelling", "trust", "neighbours"}
    assert explained["tokens"].keys() == {"rank", "score"}


def test_what_is_not_to_be_indexed_is_not(service: Service, room: list[str]) -> None:
    for key, more in (("omitted", {}), ("empty", {"index": {}}), ("null", {"index": None})):
        body = {"namespace": room, "key": key, "value": {"text": "tea"}, "wait_for_index": True, **more}
        assert service.call("PUT", "/v1/memories", json=body).status_code == 200
    for mode in ("hybrid", "semantic", "keyword"):
        assert search(service, room, "tea", mode=mode).json() == {"items": [], "unindexed": 3}
    blank = {"namespace": room, "key": "blank", "value": {}, "index": {"text": "  "}, "wait_for_index": True}
    assert service.call("PUT", "/v1/memories", json=blank).status_code == 200
    assert search(service, room, "tea").status_code == 200


def test_texts_of_the_value_are_indexed_by_naming_them(service: Service, room: list[str]) -> None:
    value = {"text": TEXTS["tea"], "cups": 2, "made": {"by": "Ann"}}
    put = {"namespace": room, "key": "every", "value": value, "index": True, "wait_for_index": True}
    assert service.call("PUT", "/v1/memories", json=put).status_code == 200
    batch = [{**put, "op": "put", "key": "some", "index": ["made"]}]
    del batch[0]["wait_for_index"]
    body = {"operations": batch, "wait_for_index": True}
    assert service.call("POST", "/v1/memories/batch", json=body).status_code == 200
    items = search(service, room, "What beverage do you like?").json()["items"]
    assert {item["key"]: item["index"] for item in items} == {
        "every": {"text": TEXTS["tea"], "made.by": "Ann"},
        "some": {"made.by": "Ann"},
    }
    assert items[0]["key"] == "every"
    with connect(service.url) as store:
        store.put(room, "from-python", value, index=("text",))
        store.batch([{"op": "put", "namespace": room, "key": "batched", "value": value, "index": ("text",)}])
        kept = [
            memory and memory.index for memory in map(partial(store.get, room), ("from-python", "batched"))
        ]
    assert kept == [{"text": TEXTS["tea"]}] * 2


def test_a_write_that_waited_says_so_and_those_without_text_can_be_listed(
    service: Service, room: list[str]
) -> None:
    put = {"namespace": room, "key": "tea", "value": {"text": "tea"}, "wait_for_index": True}
    assert service.call("PUT", "/v1/memories", json={**put, "index": True}).json()["indexed"] is True
    assert service.call("PUT", "/v1/memories", json={**put, "index": ["absent"]}).json()["indexed"] is False
    assert "indexed" not in service.call("PUT", "/v1/memories", json={**put, "key": "bare"}).json()
    body = {"namespace_prefix": room, "unindexed": True}
    for path in ("search", "list"):
        items = service.call("POST", f"/v1/memories/{path}", json=body).json()["items"]
        assert [item["key"] for item in items] == ["bare", "tea"]
    with connect(service.url) as store:
        assert store.put(room, "tea", {"text": "tea"}, index=True, wait_for_index=True).indexed
        found = store.search(room, query="tea")
        assert ([each.key for each in found], found.unindexed, found.degraded) == (["tea"], 1, None)


def test_odd_questions_are_answered(service: Service, room: list[str]) -> None:
    write(service, room)
    longest = ["tea " * 16_000, "".join(chr(0x4E00 + n % 20_000) for n in range(21_000))]
    for query in [*ODD, *longest]:
        for mode in ("hybrid", "keyword") if query in longest else ("hybrid", "semantic", "keyword"):
            answer = search(service, room, query, mode=mode, explain=True)
            assert answer.status_code == 200, (query[:50], answer.text[:500])
            found = answer.json()["items"]
            assert len(found) == 3 or mode == "keyword"
    deep = search(service, room, "tea", offset=10**9, limit=100)
    assert deep.json() == {"items": []}


@pytest.mark.parametrize(
    "wrong",
    [{"query": ""}, {"query": " \n\t"}, {"mode": "exact"}, {"mode": ""}, {"explain": "yes"}, {"query": 7},
     {"limit": 101}, {"offset": -1}, {"as_of": "then"}, {"filter": []}],
)  # fmt: skip
def test_bad_questions_are_refused_with_a_word(
    service: Service, room: list[str], wrong: dict[str, object]
) -> None:
    body = {"namespace_prefix": room, "query": "tea", **wrong}
    assert_error(service.call("POST", "/v1/memories/search", json=body), 400, "invalid_request")


def test_a_service_whose_embedder_is_down_writes_and_finds_words(tmp_path: Path) -> None:
    with embeddings() as model:
        model.stop()
        with serving(tmp_path, "--embedder", f"{model.url}#m") as service:
            room = ["user", "noop"]
            write(service, room)
            answer = search(service, room, "red car").json()
            assert model.url in answer["degraded"]
            assert (answer["items"][0]["key"], answer["items"][0]["score"]) == ("car", None)
            assert_error(search(service, room, "tea", mode="semantic"), 503, "service_unavailable")
            assert service.call("GET", "/v1/admin/index").json()["waiting"] == 3
            model.start()
            until(lambda: service.call("GET", "/v1/admin/index").json()["waiting"] == 0)
            answer = search(service, room, "red car").json()
            assert "degraded" not in answer
            assert answer["items"][0]["score"] > 0.5


def test_who_waits_for_the_index_takes_no_thread_from_others(tmp_path: Path) -> None:
    with embeddings() as model, ThreadPoolExecutor(4) as pool:
        model.behaviour = "held"
        with serving(tmp_path, "--embedder", f"{model.url}#m", "--threads", 1) as service:
            body = {"namespace": ["user", "noop"], "value": {}, "index": {"t": "tea"}, "wait_for_index": True}
            waiting = [
                pool.submit(service.call, "PUT", "/v1/memories", json={**body, "key": f"{n}"})
                for n in range(4)
            ]
            until(lambda: service.call("GET", "/v1/admin/index").json()["waiting"] == 4)
            assert not any(each.done() for each in waiting)
            model.free.set()
            assert [each.result().status_code for each in waiting] == [200] * 4
            assert service.call("GET", "/v1/admin/index").json()["waiting"] == 0


def test_the_model_is_loaded_by_the_first_text_and_not_before(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.put(["user", "noop"], "k", {"text": "tea"})
        assert service.call("POST", "/v1/memories/search", json={"namespace_prefix": []}).status_code == 200
        maps = Path(f"/proc/{service.process.pid}/maps")
        assert "onnxruntime" not in maps.read_text()
        write(service, ["user", "noop"])
        assert "onnxruntime" in maps.read_text()


def test_a_terminal_shows_scores_and_why(command: Command) -> None:
    for key, text in TEXTS.items():
        command.run("put", command.room, key, f"text={text}", "--index", f"text={text}")
    command.run("index", "--retry")
    until(lambda: command.json("index")["waiting"] == 0)
    shown = command.says("search", command.room, "what do you drink?", COLUMNS="200")
    assert re.search(r"score +namespace", shown.casefold()), shown
    assert re.search(r"^ *0\.\d{3}.* tea ", shown, re.MULTILINE), shown
    assert "words" not in shown
    shown = command.says("search", command.room, "what do you drink?", "--explain", COLUMNS="200")
    assert re.search(r"meaning #1 \+0\.\d\d", shown), shown
    found = command.lines("search", command.room, "what do you drink?", "--mode", "semantic")
    assert found[0]["key"] == "tea"


def test_reindex_takes_the_embedder_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with embeddings() as model:
        env = {"ALCOVE_AT": str(path), "ALCOVE_EMBEDDER": f"{model.url}#one"}
        put = alcove("put", "user:noop", "k", "a=1", "--index", "text=tea", env=env)
        assert put.returncode == 0, put.stderr
        assert alcove("reindex", env=env).returncode == 0
        other = {**env, "ALCOVE_EMBEDDER": f"{model.url}#two"}
        found = alcove("search", "user:noop", "tea", env=other)
        assert "alcove reindex" in found.stderr
        done = alcove("reindex", env=other)
        assert (done.returncode, done.stdout) == (0, "1 memory indexed\n"), done.stderr
        found = alcove("search", "user:noop", "tea", env=other)
        assert (found.returncode, found.stderr) == (0, "")
        assert "1.000" in found.stdout
