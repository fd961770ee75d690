"""Knowledge over REST: documents put, looked up and taken away, and sources that follow their files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove
from alcove.agents.knowledge import Knowledge
from tests.support.agent_service import Player
from tests.support.concurrent_workers import QUIET
from tests.support.conversation_service import MANUAL, Salon, written
from tests.support.service import assert_error
from tests.support.waiting import until

AT = "/v1/knowledge/manuals"
MARKDOWN = {"content-type": "text/markdown"}


def names(who: Player) -> list[str]:
    return [each["name"] for each in who.see(f"{AT}/documents")["documents"]]


def test_a_document_is_put_found_replaced_and_taken_away(salon: Salon) -> None:
    writer, path = salon.known("writer"), f"{AT}/documents/guides%2Fbike.md"
    first = b"# Bike\n\n## Chain\n\nOil the chain every 300 kilometres.\n"
    put = writer.ask("PUT", path, content=first, headers=MARKDOWN)
    assert (put.status_code, put.json()["chunks"], put.json()["uploaded"]) == (200, 1, True)
    until(lambda: salon.admin.see("/v1/admin/index")["waiting"] == 0)
    (found, *_) = writer.ask("POST", f"{AT}/search", json={"query": "How often is the chain oiled?"}).json()[
        "items"
    ]
    assert (found["document"], found["heading"]) == ("guides/bike.md", "Bike > Chain")
    assert 0 <= found["score"] <= 1
    assert (
        writer.ask(
            "PUT", path, content=first + b"\n## Brakes\n\nChange the pads.\n", headers=MARKDOWN
        ).json()["chunks"]
        == 2
    )
    assert [piece["heading"] for piece in writer.see(path)["pieces"]] == ["Bike > Chain", "Bike > Brakes"]
    assert writer.ask("DELETE", path).status_code == 204
    assert_error(writer.ask("GET", path), 404, "not_found")
    assert "guides/bike.md" not in names(writer)


def test_only_admins_and_writers_manage_documents(salon: Salon) -> None:
    stranger, author = salon.talker(), salon.talker(groups=["authors"])
    for method, path, more in (
        ("GET", f"{AT}/documents", {}),
        ("PUT", f"{AT}/documents/x.md", {"content": b"x", "headers": MARKDOWN}),
        ("DELETE", f"{AT}/documents/x.md", {}),
        ("POST", f"{AT}/search", {"json": {"query": "x"}}),
        ("POST", f"{AT}/sync", {}),
    ):
        assert_error(stranger.ask(method, path, **more), 403, "permission_denied")
    assert stranger.see("/v1/knowledge")["sources"] == []
    assert [each["name"] for each in author.see("/v1/knowledge")["sources"]] == ["manuals"]
    assert [each["name"] for each in salon.admin.see("/v1/knowledge")["sources"]] == ["manuals", "secrets"]
    assert_error(author.ask("GET", "/v1/knowledge/nothing/documents"), 404, "not_found")
    auditor = salon.talker(roles=["auditor"])
    assert auditor.see(f"{AT}/documents")
    assert_error(
        auditor.ask("PUT", f"{AT}/documents/x.md", content=b"x", headers=MARKDOWN), 403, "permission_denied"
    )


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [("x.exe", b"x", "name"), ("x.pdf", b"no pdf", "content"), ("x.md", b"\xff\xfe\xfa", "content")],
)
def test_what_cannot_be_read_is_refused_and_not_kept(
    salon: Salon, name: str, content: bytes, field: str
) -> None:
    writer = salon.known("writer")
    answer = writer.ask("PUT", f"{AT}/documents/{name}", content=content, headers=MARKDOWN)
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field
    assert name not in names(writer)


def test_documents_of_files_are_changed_in_their_files_only(salon: Salon) -> None:
    writer = salon.known("writer")
    until(lambda: "espresso.md" in names(writer))
    assert_error(
        writer.ask("PUT", f"{AT}/documents/espresso.md", content=b"x", headers=MARKDOWN), 409, "conflict"
    )
    assert_error(writer.ask("DELETE", f"{AT}/documents/espresso.md"), 409, "conflict")


def test_a_wipe_takes_the_documents_away_that_a_user_uploaded(salon: Salon) -> None:
    author, other = salon.talker("author", groups=["authors"]), salon.talker("other", groups=["authors"])
    for who in (author, other):
        put = who.ask(
            "PUT", f"{AT}/documents/{who.name}.md", content=b"# Mine\n\nMy own words.\n", headers=MARKDOWN
        )
        assert put.status_code == 200
    receipt = salon.admin.ask("POST", f"/v1/admin/users/{author.name}/wipe", json={"wait": True}).json()
    assert receipt["removed"]["memories"] == 2
    assert f"{author.name}.md" not in names(other)
    assert f"{other.name}.md" in names(other)


# Following files


@pytest.fixture
def source(tmp_path: Path, path: Path) -> Iterator[tuple[Knowledge, Any, Path]]:
    specs = written(tmp_path)
    with Alcove(path, settings=QUIET) as memory:
        handle = memory.agents(specs)
        yield handle.transport.services["Knowledge"], handle, tmp_path / "manuals"  # type: ignore[attr-defined]


def texts(handle: Any, name: str) -> list[str]:
    return [piece.text for piece in handle.document("manuals", name).pieces]


def test_a_source_follows_its_files_and_does_nothing_where_nothing_changed(source: Any, path: Path) -> None:
    _, handle, folder = source
    first = handle.sync_source("manuals")
    assert (first.documents, first.errors) == (1, {})
    before = handle.transport.services["Timeline"].last_event()
    assert handle.sync_source("manuals").chunks == first.chunks
    assert handle.transport.services["Timeline"].last_event() == before
    (folder / "espresso.md").write_text(MANUAL.replace("two months", "six weeks"))
    (folder / "new.txt").write_text("A new file.")
    handle.sync_source("manuals")
    assert "six weeks" in " ".join(texts(handle, "espresso.md"))
    assert texts(handle, "new.txt") == ["A new file."]
    (folder / "new.txt").unlink()
    assert handle.sync_source("manuals").documents == 1


def test_only_the_chunks_that_changed_are_written_again(source: Any) -> None:
    _, handle, folder = source
    handle.sync_source("manuals")
    events = handle.transport.services["Timeline"]
    before = events.last_event()
    (folder / "espresso.md").write_text(MANUAL.replace("three years", "four years"))
    handle.sync_source("manuals")
    assert events.last_event() - before == 3  # a new chunk, the old one's end, and the document itself


def test_a_bad_file_is_reported_and_skipped_and_what_was_read_before_stays(source: Any) -> None:
    _, handle, folder = source
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    status = handle.sync_source("manuals")
    assert list(status.errors) == ["broken.pdf"]
    assert status.documents == 2
    good = texts(handle, "espresso.md")
    (folder / "espresso.md").write_bytes(b"\xff\xff\xff broken")
    assert sorted(handle.sync_source("manuals").errors) == ["broken.pdf", "espresso.md"]
    assert texts(handle, "espresso.md") == good
    (folder / "espresso.md").write_text(MANUAL)
    (folder / "broken.pdf").unlink()
    assert handle.sync_source("manuals").errors == {}


def test_a_file_whose_reader_is_not_installed_is_reported(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handle, folder = source
    (folder / "page.html").write_text("<h1>Page</h1><p>Text.</p>")
    monkeypatch.setitem(sys.modules, "selectolax.lexbor", None)
    monkeypatch.setitem(sys.modules, "selectolax", None)
    (why,) = handle.sync_source("manuals").errors.values()
    assert "pip install '.[knowledge]'" in why


def test_links_out_of_the_folder_and_hidden_files_are_not_read(source: Any, tmp_path: Path) -> None:
    _, handle, folder = source
    (folder / "link.md").symlink_to(tmp_path / "secrets" / "codes.md")
    (folder / ".hidden.md").write_text("hidden")
    (folder / ".git").mkdir()
    shutil.copy(folder / "espresso.md", folder / ".git" / "copy.md")
    handle.sync_source("manuals")
    assert [each.name for each in handle.documents("manuals")] == ["espresso.md"]


def test_a_sync_that_was_broken_off_is_taken_up_again(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash: some chunks are written, and what is known of the document is not."""
    knowledge, handle, folder = source
    sections = "\n".join(f"## Part {n}\n\nThis is part number {n} of the long guide.\n" for n in range(500))
    (folder / "long.md").write_text(f"# Long\n\n{sections}")
    writer, calls = knowledge._memories.writer, []
    batch = writer.batch

    def breaking(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return batch(*args)

    monkeypatch.setattr(writer, "batch", breaking)
    with pytest.raises(RuntimeError):
        handle.sync_source("manuals")
    monkeypatch.undo()
    assert handle.document("manuals", "long.md").pieces == []
    handle.sync_source("manuals")
    assert len(texts(handle, "long.md")) == 500
    assert len({*texts(handle, "long.md")}) == 500
