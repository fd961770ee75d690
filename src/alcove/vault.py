"""Envelope encryption: data keys encrypt values, one for each subject, and the operator's key encrypts these.

Values are sealed with AES-256-GCM. Key-encryption keys have 32 bytes, and an id that is derived from them.
Their sources are defined at the end of this file.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from ssl import RAND_bytes
from typing import NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from alcove.core.errors import KeyDestroyed, KeyUnavailable, StoreError, Unavailable, Unreadable
from alcove.core.namespace import Namespace
from alcove.engine.data_keys import DataKey, DataKeys

STORE = "store"
_NONCE_BYTES = 12
_CACHE_SIZE = 10_000
_REWRAP_BATCH = 500


def subject_of(namespace: Namespace) -> str:
    """Returns the subject whose data key seals a namespace: its owner, or its root if it has no owner."""
    owner = namespace.owner
    return f"room:{namespace[0]}" if owner is None else f"user:{owner}"


def user_subject(user: str) -> str:
    """Returns the subject of everything that belongs to a user."""
    return f"user:{user}"


class Rotation(NamedTuple):
    """The result of a rotation: the active key's id, and how many data keys were wrapped again."""

    active: str
    rewrapped: int


class SubjectKey(NamedTuple):
    """A subject's data key, unwrapped."""

    id: int
    raw: bytes
    cipher: AESGCM

    def seal(self, plaintext: bytes, bound_to: bytes) -> bytes:
        """Returns a ciphertext that can be opened only with the same `bound_to`."""
        nonce = RAND_bytes(_NONCE_BYTES)  # as strong as os.urandom, and does not release the GIL
        return nonce + self.cipher.encrypt(nonce, plaintext, bound_to)


class Vault:
    """Data keys, unwrapped on demand and cached until `forget`."""

    def __init__(self, store: DataKeys, provider: KeyProvider) -> None:
        self._store = store
        self._provider = provider
        self._keks: dict[str, Kek] = {}
        self._read_keks()
        self._by_subject: OrderedDict[str, SubjectKey] = OrderedDict()
        self._by_id: dict[int, SubjectKey] = {}
        self.key(STORE)  # a wrong key fails here, at start-up, and not at the first read

    def cached_key(self, subject: str) -> SubjectKey | None:
        """Returns the subject's data key if it is cached."""
        return self._by_subject.get(subject)

    def find_key(self, subject: str) -> SubjectKey | None:
        """Returns the subject's data key if it exists."""
        return self.cached_key(subject) or self._load(self._store.find(subject=subject))

    def key(self, subject: str, *, wipes: int | None = None) -> SubjectKey:
        """Returns the subject's data key, and creates it on the first call, which may wait for other writes.

        With `wipes`, raises KeyDestroyed instead of creating a key if there have been more wipes.
        """
        key = self.find_key(subject)
        if key is None:
            self._read_keks()  # another process may have rotated: wrap with the key that is active now
            new = self._wrap(0, subject, secrets.token_bytes(32))
            key = self._load(self._store.add(subject, new.wrapped, new.wrapped_by, wipes))
            if key is None:
                raise KeyDestroyed("a user was wiped in the meantime")
        return key

    def key_by_id(self, id: int) -> SubjectKey:
        """Returns a data key by its id, read from the store; raises KeyDestroyed if it has been wiped."""
        key = self._load(self._store.find(id=id))
        if key is None:
            raise KeyDestroyed("the data key of this value has been destroyed")
        return key

    def open(self, data_key: int, sealed: bytes, bound_to: bytes) -> bytes:
        """Returns the plaintext; raises `Unreadable` if the value was altered or moved to another place."""
        key = self._by_id.get(data_key) or self.key_by_id(data_key)
        try:
            return key.cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise Unreadable("this value was altered, or moved from the place it was sealed for") from None

    def pseudonym(self, text: str) -> str:
        """Returns a keyed digest that replaces a text which must not be stored itself."""
        return hmac.new(self.key(STORE).raw, text.encode(), hashlib.sha256).hexdigest()

    def derive_key(self, purpose: str) -> bytes:
        """Derives a secret for one purpose, which stays the same when keys are rotated."""
        hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"alcove {purpose}".encode())
        return hkdf.derive(self.key(STORE).raw)

    def active_id(self) -> str:
        """Returns the id of the key-encryption key that wraps new data keys."""
        self._read_keks()
        return self._active.id

    def for_data_keys(self, store: DataKeys) -> Vault:
        """Returns a vault with the same key-encryption keys for the data keys of another file."""
        return Vault(store, self._provider)

    def check(self) -> None:
        """Raises unless the key-encryption key is available and is the right one."""
        self._read_keks()
        key = self._store.find(subject=STORE)
        if key is None:
            raise KeyUnavailable("the store's own data key is gone")
        self._unwrap(key)

    def forget(self, subject: str) -> None:
        """Drops a data key from the cache, because the engine no longer has it."""
        key = self._by_subject.pop(subject, None)
        if key:
            self._by_id.pop(key.id, None)

    def rotate(self) -> Iterator[Rotation]:
        """Wraps every data key with a new active key, batch by batch; after a crash, call it again.

        It makes a new key only if no earlier rotation is unfinished.
        """
        self._read_keks()
        if not self._store.find_all(not_wrapped_by=self._active.id, limit=1):
            self._provider.renew()
            self._read_keks()
        rewrapped = 0
        while batch := self._store.find_all(not_wrapped_by=self._active.id, limit=_REWRAP_BATCH):
            self._store.rewrap([self._wrap(key.id, key.subject, self._unwrap(key)) for key in batch])
            rewrapped += len(batch)
            yield Rotation(self._active.id, rewrapped)
            self._read_keks()  # after another rotation in the meantime, both use its key

    @property
    def _active(self) -> Kek:
        return next(iter(self._keks.values()))

    def _load(self, key: DataKey | None) -> SubjectKey | None:
        if key is None:
            return None
        raw = self._unwrap(key)
        unwrapped = SubjectKey(key.id, raw, AESGCM(raw))
        self._by_id[key.id] = self._by_subject[key.subject] = unwrapped
        if len(self._by_subject) > _CACHE_SIZE:  # only the oldest: clearing all would reload each
            _, oldest = self._by_subject.popitem(last=False)
            self._by_id.pop(oldest.id, None)
        return unwrapped

    def _wrap(self, id: int, subject: str, raw: bytes) -> DataKey:
        nonce = os.urandom(_NONCE_BYTES)
        wrapped = nonce + AESGCM(self._active.key).encrypt(nonce, raw, subject.encode())
        return DataKey(id, subject, wrapped, self._active.id)

    def _unwrap(self, key: DataKey) -> bytes:
        if key.wrapped_by not in self._keks:  # another process may have rotated since
            self._read_keks()
        if not (kek := self._keks.get(key.wrapped_by)):
            missing = f"this store is sealed with the key {key.wrapped_by}"
            raise KeyUnavailable(f"{missing}, but the only keys are {', '.join(self._keks)}")
        try:
            nonce, wrapped = key.wrapped[:_NONCE_BYTES], key.wrapped[_NONCE_BYTES:]
            return AESGCM(kek.key).decrypt(nonce, wrapped, key.subject.encode())
        except (InvalidTag, ValueError):
            raise KeyUnavailable(f"the data key {key.id} was altered: it does not open") from None

    def _read_keks(self) -> None:
        self._keks = {kek.id: kek for kek in self._provider.load()}


# Where key-encryption keys come from


class Kek(NamedTuple):
    """A key-encryption key and its public id."""

    id: str
    key: bytes

    @classmethod
    def of(cls, key: bytes) -> Kek:
        return cls(hashlib.sha256(b"alcove key id" + key).hexdigest()[:16], key)


class KeyProvider(Protocol):
    """A source of key-encryption keys: one is active, older ones can still be read."""

    def create(self) -> None:
        """Makes the first key, if there is none; called only when a store is created."""

    def load(self) -> list[Kek]:
        """Returns all keys, the active one first; an error says what is missing."""

    def renew(self) -> None:
        """Makes a new key and activates it, or raises an error that tells the operator how to do it."""


class KeyFile:
    """A file that only its owner may read: one base64 key on each line, the active one last."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        if self.path.exists():
            return
        temporary = self._write_temporary(_new_line())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, self.path)  # unlike a rename, it never replaces a key
        temporary.unlink()
        with _folder(self.path) as folder:
            os.fsync(folder)  # the file's name must be durable, too

    def follow(self, other: KeyFile, *, only_check: bool = False) -> None:
        """Becomes a copy of another file; raises if this file has a key that the other one lacks."""
        theirs = other.load()
        ours = self.load() if self.path.exists() else []
        if not {*ours} <= {*theirs}:
            raise StoreError(f"{self.path} is the key of another store; it was not overwritten")
        if not only_check and ours != theirs:
            self._write_temporary(_format_keys(theirs)).replace(self.path)
            with _folder(self.path) as folder:
                os.fsync(folder)

    def load(self) -> list[Kek]:
        try:
            lines = self.path.read_text(encoding="ascii").split()
        except FileNotFoundError:
            raise KeyUnavailable(
                f"the key file {self.path} is missing; without it this store cannot be read: restore it"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise KeyUnavailable(f"the key file {self.path} cannot be read: {error}") from None
        if not lines:
            raise KeyUnavailable(f"the key file {self.path} is empty; restore the right one")
        return [_parse(line, f"{self.path}, key {n}") for n, line in enumerate(lines, 1)][::-1]

    def renew(self) -> None:
        """Replaces the file atomically by one with a new last line; one process at a time."""
        with _folder(self.path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._write_temporary(_format_keys(self.load()) + _new_line()).replace(self.path)
            os.fsync(folder)

    def _write_temporary(self, text: str) -> Path:
        """Writes a temporary file in the same folder, which is complete and on the disk afterwards."""
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise Unavailable(f"the key file {self.path} cannot be written: {error.strerror}") from None
        return temporary


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
    """Returns the key or key file of the environment; without them, a key file next to the database."""
    if os.environ.get("ALCOVE_KEY"):
        return EnvironmentKey()
    return KeyFile(Path(os.environ.get("ALCOVE_KEY_FILE") or store.with_name(store.name + ".key")))


def _format_keys(keks: list[Kek]) -> str:
    """Returns keys as lines of a key file, the active one last."""
    return "".join(f"{base64.b64encode(kek.key).decode()}\n" for kek in reversed(keks))


def _new_line() -> str:
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
