"""An agent's files about a user, as memories in one room: `agent:<agent>:u:<user>:memories`.

The key of a memory is the path, its value is `{"content": text}`: encrypted on disk, and not indexed. A
folder exists as long as there is a file in it. An edit expects the revision that was read, and moving or
deleting a folder is one transaction, so that concurrent callers never lose a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from urllib.parse import unquote

from alcove.client.store import Store
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge
from alcove.core.records import MAX_KEY_BYTES, BatchOperation, Delete, Entry, Get, Memory, Put
from alcove.core.unicode import normalize
from alcove.integrations.adapter import read_all, search_all

ROOT = "/memories"
MAX_FILES = 500
"""Files of one user with one agent: moving all of them is one batch."""
MAX_CHARACTERS = 64_000
"""Characters of one file."""
MAX_LISTED = 200
"""Names in one listing."""
MAX_SHOWN = 50_000
"""Characters of a file in one answer."""
_MAX_ATTEMPTS = 100


class MemoryFiles:
    """The files of one agent for the user of a store; methods return the text for the model."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent

    def view(self, path: str, lines: tuple[int, int] | None = None) -> str:
        """Shows a folder, or a file with line numbers; `lines`: only the first to the last (-1: the end)."""
        path = _check_path(path)
        if path != ROOT and (file := self._get(path)) is not None:
            return f"Here's the content of {path} with line numbers:\n{_number_lines(_text(file), lines)}"
        files = search_all(self._store, self._room, exact=True)
        sizes = {
            file.key: len(str(file.value.get("content", "")).encode())
            for file in files
            if file.key.startswith(f"{path}/")
        }
        if not sizes and path != ROOT:
            raise NotFound(f"The path {path} does not exist. Please provide a valid path.")
        names = [*_list_folder(path, sizes)]
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        more = len(names) - MAX_LISTED
        note = [f"[and {more} more: view one of the directories]"] if more > 0 else []
        return "\n".join([head, f"{_format_size(sum(sizes.values()))}\t{path}", *names[:MAX_LISTED], *note])

    def create(self, path: str, text: str) -> str:
        """Creates a new file."""
        path, revisions = _check_path(path), self._revisions()
        if len(revisions) >= MAX_FILES:
            raise PayloadTooLarge("path", f"one of at most {MAX_FILES} files: delete some first")
        _check_unused(path, revisions)
        try:
            self._store.put(self._room, path, _value(text), create_only=True)
        except Conflict:
            raise Conflict(f"{path} already exists") from None
        return f"File created successfully at: {path}"

    def str_replace(self, path: str, old: str, new: str) -> str:
        """Replaces a text that occurs exactly once."""
        path = _check_path(path)

        def replace(text: str) -> str:
            count = text.count(old) if old else 0
            if count > 1:
                places = f"{count} times in {path}, the first time in line {_line_number(text, old)}"
                raise Conflict(f"No replacement was performed: old_str occurs {places}. Make it unique.")
            if not count:
                raise NotFound(f"No replacement was performed, old_str did not appear verbatim in {path}.")
            return text.replace(old, new)

        before, after = self._edit(path, replace)
        line = _line_number(before, old)
        lines = _number_lines(after, (max(1, line - 2), min(line + 2, after.count("\n") + 1)))
        return f"The memory file has been edited. Around the change it is now, with line numbers:\n{lines}"

    def insert(self, path: str, line: int, text: str) -> str:
        """Inserts text after the line with this number; 0 is the beginning."""
        path = _check_path(path)

        def insert_lines(before: str) -> str:
            lines = before.removesuffix("\n").split("\n") if before else []
            if not 0 <= line <= len(lines):
                raise InvalidRequest("insert_line", f"a line within the range [0, {len(lines)}], not {line}")
            return "\n".join([*lines[:line], text.removesuffix("\n"), *lines[line:], ""])

        self._edit(path, insert_lines)
        return f"The file {path} has been edited."

    def delete(self, path: str) -> str:
        """Deletes a file, or a folder with everything in it."""
        path = _check_below_root(path)
        for _ in range(_MAX_ATTEMPTS):
            revisions = _at_or_below(path, self._revisions())
            if not revisions:
                raise NotFound(f"The path {path} does not exist")
            if self._try_batch(
                [Delete(self._room, key, expected_revision=n) for key, n in revisions.items()]
            ):
                return f"Successfully deleted {path}"
        raise _busy()

    def rename(self, old: str, new: str) -> str:
        """Moves a file, or a folder with everything in it, to an unused path."""
        old, new = _check_below_root(old), _check_below_root(new)
        if new.startswith(f"{old}/"):
            raise InvalidRequest("new_path", "a path outside of the directory that you move")
        for _ in range(_MAX_ATTEMPTS):
            revisions = self._revisions()
            keys = [*_at_or_below(old, revisions)]
            if not keys:
                raise NotFound(f"The path {old} does not exist")
            _check_unused(new, revisions)
            files = [file for file in read_all(self._store, [Get(self._room, key) for key in keys]) if file]
            operations: list[BatchOperation] = [Delete(self._room, each.key, each.revision) for each in files]
            for file in files:
                key = new + file.key[len(old) :]
                operations.append(Put(self._room, key, file.value, index=file.index, create_only=True))
            if len(files) == len(keys) and self._try_batch(operations):
                return f"Successfully renamed {old} to {new}"
        raise _busy()

    def clear(self) -> str:
        """Deletes every file."""
        while revisions := self._revisions():
            self._try_batch([Delete(self._room, key) for key in [*revisions][:MAX_FILES]])
        return "All memory cleared"

    @cached_property
    def _room(self) -> tuple[str, ...]:
        return ("agent", self._agent, "u", self._store.whoami().user, "memories")

    def _get(self, path: str) -> Memory | None:
        return self._store.get(self._room, path)

    def _revisions(self) -> dict[str, int]:
        """The revision of every file by its path."""
        entries = list[Entry]()
        while page := self._store.list(self._room, limit=1000, offset=len(entries), exact=True):
            entries += page
        return {entry.key: entry.revision for entry in entries}

    def _edit(self, path: str, change: Callable[[str], str]) -> tuple[str, str]:
        """Changes the text of a file; returns the text before and after."""
        for _ in range(_MAX_ATTEMPTS):
            if (file := self._get(path)) is None:
                raise NotFound(f"There is no file {path}. Please provide a valid path.")
            before = _text(file)
            after = change(before)
            if self._try_batch([Put(self._room, path, _value(after), expected_revision=file.revision)]):
                return before, after
        raise _busy()

    def _try_batch(self, operations: list[BatchOperation]) -> bool:
        """Performs all operations or none; returns False if a revision was not the expected one."""
        try:
            self._store.batch(operations)
            return True
        except Conflict:
            return False


def _busy() -> Conflict:
    return Conflict("other callers keep changing these files; try again")


def _value(text: str) -> dict[str, str]:
    if len(text) > MAX_CHARACTERS:
        raise PayloadTooLarge("text", f"a file of at most {MAX_CHARACTERS} characters, not {len(text)}")
    return {"content": text}


def _text(file: Memory) -> str:
    content = file.value.get("content")
    if not isinstance(content, str):
        raise InvalidRequest("path", f"a text file: another program wrote something else at {file.key}")
    return content


# Paths


def _check_path(path: str) -> str:
    """The normalized path; raises InvalidRequest unless it is below /memories and unambiguous."""
    if len(path) > MAX_KEY_BYTES:
        raise PayloadTooLarge("path", f"at most {MAX_KEY_BYTES} bytes")
    path = normalize("NFC", path.removesuffix("/"))
    decoded = normalize("NFKC", unquote(unquote(unquote(path))))
    names = decoded.split("/")[1:]
    is_plain = path.isprintable() and decoded.isprintable() and not {"\\", "\ufffd"} & {*decoded}
    has_names = all(name.strip(".") and name == name.strip() for name in names)
    is_below = path.count("/") == len(names) and f"{path}/".startswith(f"{ROOT}/")
    if not (is_plain and has_names and is_below):
        raise InvalidRequest("path", f"{ROOT}, or a plain path below it without . and .., not {path[:200]!r}")
    return path


def _check_below_root(path: str) -> str:
    """The normalized path; raises InvalidRequest for the root, which cannot be deleted or moved."""
    if (path := _check_path(path)) == ROOT:
        raise InvalidRequest("path", f"a path below {ROOT}: the directory itself cannot be changed")
    return path


def _at_or_below(path: str, revisions: dict[str, int]) -> dict[str, int]:
    """The file at a path, or the files below it."""
    return {key: number for key, number in revisions.items() if f"{key}/".startswith(f"{path}/")}


def _check_unused(path: str, revisions: dict[str, int]) -> None:
    """Raises an error if a new file cannot be at this path."""
    if path == ROOT or _at_or_below(path, revisions):
        raise Conflict(f"{path} already exists")
    if files := [key for key in revisions if path.startswith(f"{key}/")]:
        raise InvalidRequest("path", f"a path in a directory: {files[0]} is a file")


# Texts for the model


def _line_number(text: str, part: str) -> int:
    """The number of the line in which the first occurrence of `part` begins."""
    return text[: text.index(part)].count("\n") + 1


def _number_lines(text: str, span: tuple[int, int] | None) -> str:
    """The lines from the first to the last of a span with their numbers, cut to the size of one answer."""
    lines = text.split("\n")
    first, last = span or (1, -1)
    last = len(lines) if last == -1 else last
    if not 1 <= first <= last or first > len(lines):
        raise InvalidRequest("view_range", f"two lines within [1, {len(lines)}], or -1 for the last one")
    numbered = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines[first - 1 : last], first))
    if len(numbered) <= MAX_SHOWN:
        return numbered
    numbered = numbered[:MAX_SHOWN]
    line_number = first + numbered.count("\n")
    return f"{numbered}\n[cut in line {line_number} of {len(lines)}: view_range shows the rest]"


def _list_folder(path: str, sizes: dict[str, int]) -> Iterator[str]:
    """The names in a folder and in its folders, each with its size."""
    totals: dict[str, int] = {}
    for key, size in sizes.items():
        names = key[len(path) + 1 :].split("/")
        for depth in () if any(name.startswith(".") for name in names) else (1, 2)[: len(names)]:
            name = "/".join([*names[:depth], *([""] if len(names) > depth else [])])
            totals[name] = totals.get(name, 0) + size
    return (f"{_format_size(totals[name])}\t{path}/{name}" for name in sorted(totals))


def _format_size(count: int) -> str:
    return f"{count}B" if count < 1024 else f"{count / 1024:.1f}K"
