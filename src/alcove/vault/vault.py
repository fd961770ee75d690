"""Seals and opens values with AES-256-GCM, each subject under a data key of its own."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from ssl import RAND_bytes
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from alcove.core.errors import KeyDestroyed, KeyUnavailable, Unreadable
from alcove.core.namespace import Namespace
from alcove.engine.base import DataKeys
from alcove.engine.rows import DataKey
from alcove.vault.providers import Kek, KeyProvider

STORE = "store"
_NONCE_BYTES = 12
_CACHE_SIZE = 10_000
_REWRAP_BATCH = 500


def subject_of(namespace: Namespace) -> str:
    """Whose data key seals a namespace: its owner's, or the one of its root where nobody owns it."""
    owner = namespace.owner
    return f"room:{namespace[0]}" if owner is None else user_subject(owner)


def user_subject(user: str) -> str:
    """The subject of everything that belongs to one user."""
    return f"user:{user}"


class Rotation(NamedTuple):
    """What a rotation did: the active key's id and how many data keys it wrapped anew."""

    active: str
    rewrapped: int


class SubjectKey(NamedTuple):
    """One subject's data key, unwrapped."""

    id: int
    raw: bytes
    cipher: AESGCM

    def seal(self, plaintext: bytes, bound_to: bytes) -> bytes:
        """A ciphertext that opens only with the same `bound_to`."""
        nonce = RAND_bytes(_NONCE_BYTES)  # as strong as os.urandom, and does not give up the GIL
        return nonce + self.cipher.encrypt(nonce, plaintext, bound_to)


class Vault:
    """Data keys, unwrapped as they are needed and cached until they are forgotten."""

    def __init__(self, store: DataKeys, provider: KeyProvider) -> None:
        self._store = store
        self._provider = provider
        self._keks: dict[str, Kek] = {}
        self._read_keks()
        self._by_subject: dict[str, SubjectKey] = {}
        self._by_id: dict[int, SubjectKey] = {}
        self.key(STORE)  # a wrong key fails here, at start-up, and not at the first read

    def known(self, subject: str) -> SubjectKey | None:
        """The subject's data key, if it has been made."""
        return self._by_subject.get(subject) or self._load(self._store.data_key(subject=subject))

    def key(self, subject: str, *, wipes: int | None = None) -> SubjectKey:
        """The subject's data key; the first call for a subject makes it, which may wait for other writes.

        With `wipes` it makes none where there have been more of them; that raises KeyDestroyed.
        """
        found = self.known(subject)
        if found is None:
            self._read_keks()  # another process may have rotated: wrap with the key that is active now
            new = self._wrap(0, subject, secrets.token_bytes(32))
            found = self._load(self._store.add_data_key(subject, new.wrapped, new.wrapped_by, wipes))
            if found is None:
                raise KeyDestroyed("somebody was wiped since")
        return found

    def existing(self, id: int) -> SubjectKey:
        """A data key by its id, as the store has it now; KeyDestroyed where it has been wiped."""
        found = self._load(self._store.data_key(id=id))
        if found is None:
            raise KeyDestroyed("the data key of this value has been destroyed")
        return found

    def open(self, data_key: int, sealed: bytes, bound_to: bytes) -> bytes:
        """The plaintext, or `Unreadable` where a bit of it or of its place has changed."""
        key = self._by_id.get(data_key) or self.existing(data_key)
        try:
            return key.cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise Unreadable("this value was altered, or moved from the place it was sealed for") from None

    def pseudonym(self, text: str) -> str:
        """A keyed digest that stands for a text where the text itself must not."""
        return hmac.new(self.key(STORE).raw, text.encode(), hashlib.sha256).hexdigest()

    def active_id(self) -> str:
        """The id of the key-encryption key that new data keys are wrapped with."""
        self._read_keks()
        return self._active.id

    def over(self, store: DataKeys) -> Vault:
        """The same key-encryption keys over the data keys of another file."""
        return Vault(store, self._provider)

    def check(self) -> None:
        """Raises unless the key-encryption key is there and is the right one."""
        self._read_keks()
        key = self._store.data_key(subject=STORE)
        if key is None:
            raise KeyUnavailable("the store's own data key is gone")
        self._unwrap(key)

    def forget(self, subject: str) -> None:
        """Drops a cached data key: the engine no longer has it."""
        key = self._by_subject.pop(subject, None)
        if key:
            self._by_id.pop(key.id, None)

    def rotate(self) -> Iterator[Rotation]:
        """Wraps every data key with a new active key, batch by batch; after a crash it goes on.

        A new key is made only when no earlier rotation is left to finish.
        """
        self._read_keks()
        if not self._store.data_keys(not_wrapped_by=self._active.id, limit=1):
            self._provider.renew()
            self._read_keks()
        done = 0
        while batch := self._store.data_keys(not_wrapped_by=self._active.id, limit=_REWRAP_BATCH):
            self._store.rewrap([self._wrap(key.id, key.subject, self._unwrap(key)) for key in batch])
            done += len(batch)
            yield Rotation(self._active.id, done)
            self._read_keks()  # another rotation meanwhile: both end at its key

    @property
    def _active(self) -> Kek:
        return next(iter(self._keks.values()))

    def _load(self, key: DataKey | None) -> SubjectKey | None:
        if key is None:
            return None
        raw = self._unwrap(key)
        opened = SubjectKey(key.id, raw, AESGCM(raw))
        if len(self._by_id) >= _CACHE_SIZE:
            self._by_id.clear()
            self._by_subject.clear()
        self._by_id[key.id] = self._by_subject[key.subject] = opened
        return opened

    def _wrap(self, id: int, subject: str, raw: bytes) -> DataKey:
        nonce = os.urandom(_NONCE_BYTES)
        wrapped = nonce + AESGCM(self._active.key).encrypt(nonce, raw, subject.encode())
        return DataKey(id, subject, wrapped, self._active.id)

    def _unwrap(self, key: DataKey) -> bytes:
        kek = self._kek(key.wrapped_by)
        try:
            nonce, wrapped = key.wrapped[:_NONCE_BYTES], key.wrapped[_NONCE_BYTES:]
            return AESGCM(kek.key).decrypt(nonce, wrapped, key.subject.encode())
        except (InvalidTag, ValueError):
            raise KeyUnavailable(f"the data key {key.id} was altered: it does not open") from None

    def _kek(self, id: str) -> Kek:
        if id not in self._keks:  # another process may have rotated since
            self._read_keks()
        if id not in self._keks:
            given = ", ".join(self._keks)
            raise KeyUnavailable(f"this store is sealed with the key {id}, but given was {given}")
        return self._keks[id]

    def _read_keks(self) -> None:
        self._keks = {kek.id: kek for kek in self._provider.load()}
