"""Where key-encryption keys come from. Each is 32 bytes, and its id is derived from them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from alcove.core.errors import KeyUnavailable, Unavailable


class Kek(NamedTuple):
    """A key-encryption key and its public id."""

    id: str
    key: bytes

    @classmethod
    def of(cls, key: bytes) -> Kek:
        return cls(hashlib.sha256(b"alcove key id" + key).hexdigest()[:16], key)


class KeyProvider(Protocol):
    """A source of key-encryption keys: one is active, older ones stay readable."""

    def create(self) -> None:
        """Makes the first key, if there is none; called only together with a new database."""
        ...

    def load(self) -> list[Kek]:
        """Every key there is, the active one first; an error says what is missing."""
        ...

    def renew(self) -> None:
        """Makes a new key the active one, or says how the operator does it."""
        ...


class KeyFile:
    """A file that only its owner may read: one key a line in base64, the active one last."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        if self.path.exists():
            return
        beside = self._write_beside(_line())
        with contextlib.suppress(FileExistsError):
            os.link(beside, self.path)  # unlike a rename, it never replaces a key
        beside.unlink()
        with _folder(self.path) as folder:
            os.fsync(folder)  # the file's name is to last, too

    def load(self) -> list[Kek]:
        try:
            lines = self.path.read_text(encoding="ascii").split()
        except FileNotFoundError:
            raise KeyUnavailable(
                f"the key file {self.path} is missing; without it this store cannot be read: put it back"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise KeyUnavailable(f"the key file {self.path} cannot be read: {error}") from None
        if not lines:
            raise KeyUnavailable(f"the key file {self.path} is empty; put the right one back")
        return [_parse(line, f"{self.path}, key {n}") for n, line in enumerate(lines, 1)][::-1]

    def renew(self) -> None:
        """Replaces the file in one step by one that has a new last line; one process at a time."""
        with _folder(self.path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            kept = "".join(f"{base64.b64encode(kek.key).decode()}\n" for kek in reversed(self.load()))
            self._write_beside(kept + _line()).replace(self.path)
            os.fsync(folder)

    def _write_beside(self, text: str) -> Path:
        """A file that is whole and on the disk before it gets the name that counts."""
        beside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise Unavailable(f"the key file {self.path} cannot be written: {error.strerror}") from None
        return beside


class EnvironmentKey:
    """Keys in an environment variable, in base64, separated by commas, the active one first."""

    def __init__(self, variable: str = "ALCOVE_KEY") -> None:
        self.variable = variable

    def create(self) -> None:
        self.load()

    def load(self) -> list[Kek]:
        texts = [text.strip() for text in os.environ.get(self.variable, "").split(",") if text.strip()]
        if not texts:
            raise KeyUnavailable(f"{self.variable} is not set; it must hold the key in base64 (32 bytes)")
        return [_parse(text, f"{self.variable}, key {n}") for n, text in enumerate(texts, 1)]

    def renew(self) -> None:
        raise KeyUnavailable(f"put a new key first in {self.variable}, and keep the old one after it")


class MemoryKey:
    """Keys that live as long as the process, for tests."""

    def __init__(self) -> None:
        self._keys = [Kek.of(secrets.token_bytes(32))]

    def create(self) -> None:
        pass

    def load(self) -> list[Kek]:
        return self._keys

    def renew(self) -> None:
        self._keys = [Kek.of(secrets.token_bytes(32)), *self._keys]


def default_keys(store: Path) -> KeyProvider:
    """The environment's key where it is set, otherwise a key file beside the database."""
    return EnvironmentKey() if os.environ.get("ALCOVE_KEY") else KeyFile(store.with_name(store.name + ".key"))


def _line() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode() + "\n"


def _parse(text: str, where: str) -> Kek:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise KeyUnavailable(f"{where}: expected 32 bytes in base64")
    return Kek.of(key)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield folder
    finally:
        os.close(folder)
