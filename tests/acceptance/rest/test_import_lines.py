"""A line of an import is taken whole or refused by its number, by whatever road it comes."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, Memory, Settings
from alcove.upkeep.transfer import Imports, longest_line
from tests.support.command import Command
from tests.support.service import Service, serving
from tests.support.waiting import PATIENCE, until

OWN = ["user", "noop"]
AT_EVERY_LIMIT: dict[str, Any] = {
    "value": {"text": "\0" * ((2**20 - len('{"text":""}')) // 6)},
    "index": {f"{n:02}" + "\1" * 1022: "\0" * 2**16 for n in range(64)},
}
SMALL = Settings(max_value_bytes=100, max_index_fields=1, max_index_bytes=100, sweep_interval=0)
LONG = json.dumps({"namespace": OWN, "key": "long", "value": {}, "": "x" * longest_line(SMALL)}).encode()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("lines"), "--embedder", "none") as service:
        yield service


def line(key: str) -> bytes:
    return json.dumps({"namespace": OWN, "key": key, "value": {}}).encode()


@pytest.mark.parametrize("road", ["library", "rest", "command", "command at a url"])
def test_a_memory_at_every_limit_is_exported_and_imported_as_it_was(
    service: Service, tmp_path: Path, road: str
) -> None:
    at, file = service.at, tmp_path / "lines"
    with Alcove(at, embedder=None, settings=Settings(sweep_interval=0)) as store:
        room = [*OWN, road]
        store.put(room, "k", **AT_EVERY_LIMIT)
        before = store.get(room, "k")
        command = Command(service.url if road.endswith("url") else str(at))
        command.run("export", ":".join(room), "-o", file, ALCOVE_EMBEDDER="none")
        assert file.stat().st_size > 24 * 2**20
        store.delete(room, "k")
        match road:
            case "library":
                assert store.import_memories(file.read_bytes().splitlines()).imported == 1
            case "rest":
                headers = {"content-type": "application/x-ndjson"}
                answer = service.call(
                    "POST", "/v1/memories/import", content=file.read_bytes(), headers=headers
                )
                assert answer.json()["imported"] == 1, answer.text
            case _:
                assert "1 memory imported" in command.says("import", file, ALCOVE_EMBEDDER="none")
        after = store.get(room, "k")
    assert kept(before) == kept(after)


def kept(memory: Memory | None) -> tuple[object, ...]:
    assert memory is not None
    return memory.value, memory.index


@pytest.mark.parametrize("road", ["library", "file", "rest", "command"])
def test_a_longer_line_is_refused_by_its_number_and_the_others_are_taken(
    service: Service, path: Path, road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = b" " * len(LONG) + line("blank")
    lines = [line("a"), LONG, line("b"), b"", LONG, blank]
    with Alcove(path, settings=SMALL, embedder=None) as store:
        match road:
            case "library":
                report = told(store.import_memories(lines))
            case "file":
                report = told(store.import_memories(io.BytesIO(b"\n".join(lines))))
            case "rest":
                names = ("max_value_bytes", "max_index_fields", "max_index_bytes")
                some = {name: getattr(SMALL, name) for name in names}
                service.call("PUT", "/v1/admin/settings", json=some)
                headers = {"content-type": "application/x-ndjson"}
                content = b"\n".join(lines)
                answer = service.call("POST", "/v1/memories/import", content=content, headers=headers)
                service.call("PUT", "/v1/admin/settings", json=dict.fromkeys(some))
                report = answer.json()
            case _:
                monkeypatch.setattr("alcove.cli.command.OPERATOR", SMALL)
                (file := path.with_name("lines")).write_bytes(b"\n".join(lines))
                command = Command(str(path))
                report = json.loads(command.says("import", file, "--json", code=1, ALCOVE_EMBEDDER="none"))
    assert (report["imported"], report["failures"]) == (2, 3)
    assert [each["line"] for each in report["failed"]] == [2, 5, 6]
    assert str(longest_line(SMALL)) in report["failed"][0]["error"]


def told(report: Imports) -> Any:
    return {**report.counts, "failed": [{"line": each.line, "error": each.error} for each in report.failed]}


def test_lines_that_do_not_end_take_no_more_than_the_bodies_of_one_user_may(service: Service) -> None:
    head = "POST /v1/memories/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with ExitStack() as stack:
        for _ in range(10):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), PATIENCE))
            one.sendall(f"{head}Content-Length: 99999999\r\n\r\n".encode() + b"x" * 2**21)
        status = one.recv(100).split(b" ")[1]
        assert status == b"503"
    until(lambda: imported(service, line("after")) == 1)


def test_large_lines_are_stored_while_others_are_still_to_come(service: Service) -> None:
    """No more of them is held than a bundle of some bytes, however few they are."""
    head = "POST /v1/memories/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    large = [
        json.dumps({"namespace": OWN, "key": f"large {n}", "value": {"text": "x" * 900_000}})
        for n in range(8)
    ]
    with socket.create_connection(("127.0.0.1", service.port), PATIENCE) as one:
        one.sendall(f"{head}Content-Length: 99999999\r\n\r\n".encode() + "\n".join(large).encode())
        until(lambda: service.get(OWN, "large 5").status_code == 200)


def imported(service: Service, content: bytes) -> int:
    headers = {"content-type": "application/x-ndjson"}
    answer = service.call("POST", "/v1/memories/import", content=content, headers=headers)
    return int(answer.json().get("imported", 0) + answer.json().get("unchanged", 0))
