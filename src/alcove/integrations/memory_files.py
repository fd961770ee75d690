"""Files that an agent keeps of a user, as memories in one room: `agent:<agent>:u:<user>:memories`.

The key of a memory is the path, its value is `{"content": text}`: sealed on disk, and not indexed. A folder
is there as long as a file is in it. An edit goes by the revision that was read, and moving or deleting a
folder is one transaction, so that of two who change something at once neither loses a change.
"""

from __future__ import annotations

from collections.abc import Callable

from alcove.client.store import Store
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge
from alcove.core.records import BatchOperation, Delete, Entry, Get, Memory, Put
from alcove.integrations import memory_paths as paths
from alcove.integrations.memory_paths import ROOT, checked_path
from alcove.integrations.opened import read_all, search_all

MOST_FILES = 500
"""Files of one user with one agent: a move of them all is one batch."""
MOST_CHARACTERS = 64_000
"""Characters of one file."""
MOST_LISTED = 200
"""Names in one list."""
_ATTEMPTS = 100


class MemoryFiles:
    """The files of one agent for the user of a store."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self._room: tuple[str, ...] | None = None

    def view(self, path: str, lines: tuple[int, int] | None = None) -> str:
        """A file with line numbers, or only two `lines` and what is between (-1: the end); or a folder."""
        path = checked_path(path)
        if path != ROOT and (file := self._get(path)) is not None:
            return f"Here's the content of {path} with line numbers:\n{paths.numbered(_text(file), lines)}"
        sizes = {key: size for key, size in (self._sizes()).items() if key.startswith(f"{path}/")}
        if not sizes and path != ROOT:
            raise NotFound(f"The path {path} does not exist. Please provide a valid path.")
        names = [*paths.listed(path, sizes)]
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        left = len(names) - MOST_LISTED
        more = [f"[and {left} more: view one of the directories]"] if left > 0 else []
        return "\n".join([head, f"{paths.size_of(sum(sizes.values()))}\t{path}", *names[:MOST_LISTED], *more])

    def create(self, path: str, text: str) -> str:
        """Makes a new file."""
        path, keys = checked_path(path), self._keys()
        if len(keys) >= MOST_FILES:
            raise PayloadTooLarge("path", f"one of at most {MOST_FILES} files: delete some first")
        paths.refuse_taken(path, keys)
        try:
            self._store.put(self._at(), path, _value(text), create_only=True)
        except Conflict:
            raise paths.exists(path) from None
        return f"File created successfully at: {path}"

    def str_replace(self, path: str, old: str, new: str) -> str:
        """Puts a text in the place of one that occurs just once."""
        path, line = checked_path(path), 0

        def replaced(text: str) -> str:
            nonlocal line
            found = text.count(old) if old else 0
            if found > 1:
                first = f"{found} times in {path}, the first time in line {paths.line_of(text, old)}"
                raise Conflict(f"No replacement was performed: old_str occurs {first}. Make it unique.")
            if not found:
                raise NotFound(f"No replacement was performed, old_str did not appear verbatim in {path}.")
            line = paths.line_of(text, old)
            return text.replace(old, new)

        text = self._edited(path, replaced)
        shown = paths.numbered(text, (max(1, line - 2), min(line + 2, text.count("\n") + 1)))
        return f"The memory file has been edited. Around the change it is now, with line numbers:\n{shown}"

    def insert(self, path: str, line: int, text: str) -> str:
        """Puts lines after the line of this number; 0 is the beginning."""
        path = checked_path(path)

        def inserted(before: str) -> str:
            lines = before.removesuffix("\n").split("\n") if before else []
            if not 0 <= line <= len(lines):
                raise InvalidRequest("insert_line", f"a line within the range [0, {len(lines)}], not {line}")
            return "\n".join([*lines[:line], text.removesuffix("\n"), *lines[line:], ""])

        self._edited(path, inserted)
        return f"The file {path} has been edited."

    def delete(self, path: str) -> str:
        """Deletes a file, or a folder with all that is in it."""
        path = paths.below_root(checked_path(path))
        for _ in range(_ATTEMPTS):
            gone, at = paths.within(path, self._keys()), self._at()
            if not gone:
                raise NotFound(f"The path {path} does not exist")
            if self._written([Delete(at, key, expected_revision=rev) for key, rev in gone.items()]):
                return f"Successfully deleted {path}"
        raise _busy()

    def rename(self, old: str, new: str) -> str:
        """Moves a file, or a folder with all that is in it, to where nothing is."""
        (old, new), at = (paths.below_root(checked_path(each)) for each in (old, new)), self._at()
        if new.startswith(f"{old}/"):
            raise InvalidRequest("new_path", "a path that is not inside of what is moved")
        for _ in range(_ATTEMPTS):
            keys = self._keys()
            if not (moved := paths.within(old, keys)):
                raise NotFound(f"The path {old} does not exist")
            paths.refuse_taken(new, keys)
            found = read_all(self._store, [Get(at, key) for key in moved])
            files = [each for each in found if each]
            steps: list[BatchOperation] = [Delete(at, each.key, each.revision) for each in files]
            for each in files:
                place = new + each.key[len(old) :]
                steps.append(Put(at, place, each.value, index=each.index, create_only=True))
            if len(files) == len(moved) and self._written(steps):
                return f"Successfully renamed {old} to {new}"
        raise _busy()

    def clear(self) -> str:
        """Deletes every file."""
        while keys := self._keys():
            self._written([Delete(self._at(), key) for key in [*keys][:MOST_FILES]])
        return "All memory cleared"

    def _at(self) -> tuple[str, ...]:
        if self._room is None:
            user = (self._store.whoami()).user
            self._room = ("agent", self._agent, "u", user, "memories")
        return self._room

    def _get(self, path: str) -> Memory | None:
        return self._store.get(self._at(), path)

    def _keys(self) -> dict[str, int]:
        """The path of every file, with its revision."""
        found, at = list[Entry](), self._at()
        while page := self._store.list(at, limit=1000, offset=len(found), exact=True):
            found += page
        return {each.key: each.revision for each in found}

    def _sizes(self) -> dict[str, int]:
        """The path of every file, with its size in bytes."""
        files = search_all(self._store, self._at(), exact=True)
        return {each.key: len(str(each.value.get("content", "")).encode()) for each in files}

    def _edited(self, path: str, change: Callable[[str], str]) -> str:
        """Changes what is in a file, from whatever it is at that moment; what it is then."""
        for _ in range(_ATTEMPTS):
            if (file := self._get(path)) is None:
                raise NotFound(f"There is no file {path}. Please provide a valid path.")
            text = change(_text(file))
            put = Put(self._at(), path, _value(text), expected_revision=file.revision)
            if self._written([put]):
                return text
        raise _busy()

    def _written(self, steps: list[BatchOperation]) -> bool:
        """Does all of it or nothing; whether it was as expected."""
        try:
            self._store.batch(steps)
            return True
        except Conflict:
            return False


def _busy() -> Conflict:
    return Conflict("others change these files all the time; try again")


def _value(text: str) -> dict[str, str]:
    if len(text) > MOST_CHARACTERS:
        raise PayloadTooLarge("text", f"a file of at most {MOST_CHARACTERS} characters, not {len(text)}")
    return {"content": text}


def _text(memory: Memory) -> str:
    """What is in a file."""
    content = memory.value.get("content")
    if not isinstance(content, str):
        raise InvalidRequest("path", f"a file of text: a program wrote something else at {memory.key}")
    return content
