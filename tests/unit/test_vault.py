"""The vault: where keys come from, what a sealed value is bound to, and how keys are rotated."""

from __future__ import annotations

import base64
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alcove import Alcove, AlcoveError, KeyUnavailable, Namespace, Settings, Unreadable, vault
from alcove.core.clock import system_clock
from alcove.engine.engine import Engine
from alcove.vault import EnvironmentKey, KeyFile, MemoryKey, Vault, subject_of

HOME = ("user", "alice")
USERS = ["alice", "bob", "carol", "dave"]


def opened(folder: Path) -> Alcove:
    return Alcove(folder / "memory.db", settings=Settings(sweep_interval=0))


def key_file(folder: Path) -> Path:
    return folder / "memory.db.key"


def on_disk(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def a_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def edit(folder: Path, *statements: str) -> list[tuple[object, ...]]:
    """Changes the file behind Alcove's back; the rows of the last statement."""
    db = apsw.Connection(os.fspath(folder / "memory.db"))
    try:
        return [db.execute(statement).fetchall() for statement in statements][-1]
    finally:
        db.close()


def wrapped_by(folder: Path) -> set[object]:
    return {id for (id,) in edit(folder, "SELECT wrapped_by FROM data_keys")}


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALCOVE_KEY", "ALCOVE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store: every user has a memory, alice has some more."""
    with opened(tmp_path) as memory:
        for user in USERS:
            memory.as_user(user).put(("user", user), "key", {"of": user})
        alice = memory.as_user("alice")
        alice.put(HOME, "other", {"n": 1})
        alice.put((*HOME, "notes"), "key", {"n": 2})
        alice.put(HOME, "key", {"of": "alice"})
    return tmp_path


def assert_all_readable(memory: Alcove) -> None:
    for user in USERS:
        assert [found.value for found in memory.as_user(user).search(("user", user), limit=1)] == [
            {"of": user}
        ]
    assert [found for each in memory.doctor() for found in each.wrong] == []


def test_a_new_store_makes_a_key_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path) as memory:
            assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600
            list(memory.rotate_keys())
    finally:
        os.umask(before)
    assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert set(on_disk(tmp_path)) == {"memory.db", "memory.db.key"}


def test_a_derived_key_is_the_same_for_a_store_and_differs_by_purpose_and_from_pseudonyms(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as memory:
        derived = memory.memories.derive_key("cookies")
        assert len(derived) == 32
        assert memory.memories.derive_key("other") != derived
        assert memory.memories.pseudonym("cookies") != derived.hex()
        list(memory.admin.rotate_keys())
        assert memory.memories.derive_key("cookies") == derived
    with opened(tmp_path) as memory:
        assert memory.memories.derive_key("cookies") == derived


def test_a_key_file_that_is_there_is_used_and_not_replaced(tmp_path: Path) -> None:
    key_file(tmp_path).write_text(before := a_key())
    opened(tmp_path).close()
    assert key_file(tmp_path).read_text() == before


WHOLE = base64.b64encode(bytes(32))
GARBLED = [b"", b"no base64!", b"c2hvcnQ=", b"\xff\xfe", WHOLE[:-4], WHOLE + b"\nno base64!"]


@pytest.mark.parametrize("content", [None, *GARBLED, WHOLE])
def test_a_missing_garbled_or_wrong_key_is_an_error_at_start_up_and_nothing_changes(
    folder: Path, content: bytes | None
) -> None:
    expected = r"memory\.db\.key"
    key_file(folder).unlink()
    if content is not None:
        key_file(folder).write_bytes(content)
    if content == WHOLE:
        (given,), (needed,) = KeyFile(key_file(folder)).load(), wrapped_by(folder)
        expected = f"sealed with the key {needed}, but the only keys are {given.id}"
    before = on_disk(folder)
    with pytest.raises(KeyUnavailable, match=expected):
        opened(folder)
    assert on_disk(folder) == before


def test_a_key_in_the_environment_takes_the_place_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = a_key(), a_key()
    monkeypatch.setenv("ALCOVE_KEY", first)
    with opened(tmp_path) as memory:
        memory.as_user("alice").put(HOME, "key", {"n": 1})
        with pytest.raises(KeyUnavailable, match="put a new key first in ALCOVE_KEY"):
            list(memory.rotate_keys())
    assert not key_file(tmp_path).exists()
    monkeypatch.setenv("ALCOVE_KEY", f" {second}, {first},")  # the active one first
    with opened(tmp_path) as memory:
        assert memory.as_user("alice").get(HOME, "key")
        assert [step.rewrapped for step in memory.rotate_keys()] == [2]
    monkeypatch.setenv("ALCOVE_KEY", second)
    with opened(tmp_path) as memory:
        assert memory.as_user("alice").get(HOME, "key")
    monkeypatch.setenv("ALCOVE_KEY", first)
    with pytest.raises(KeyUnavailable, match="but the only keys are"):
        opened(tmp_path)


def test_a_key_file_that_the_environment_names_takes_the_place_of_the_one_beside_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("ALCOVE_KEY_FILE", str(elsewhere))
    with opened(tmp_path) as memory:
        memory.as_user("alice").put(HOME, "key", {"n": 1})
    assert not key_file(tmp_path).exists()
    elsewhere.write_text(elsewhere.read_text() + a_key() + "\n")  # the active one last
    with opened(tmp_path) as memory:
        assert memory.as_user("alice").get(HOME, "key")
        assert [step.rewrapped for step in memory.rotate_keys()] == [2]
    elsewhere.unlink()
    with pytest.raises(KeyUnavailable, match=f"{elsewhere} is missing"):
        opened(tmp_path)
    assert not elsewhere.exists()


@pytest.mark.parametrize("text", ["", " , ", "secret", f"{WHOLE.decode()},secret"])
def test_a_garbled_key_in_the_environment_is_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("STORE_KEY", text)
    for _ in range(2):
        with pytest.raises(KeyUnavailable, match="STORE_KEY"):
            Alcove(tmp_path / "memory.db", keys=EnvironmentKey("STORE_KEY"))
    monkeypatch.setenv("STORE_KEY", a_key())
    Alcove(tmp_path / "memory.db", keys=EnvironmentKey("STORE_KEY")).close()


THE_ROW = "WHERE key = CAST('key' AS BLOB) AND ended_at IS NULL AND user = 'alice' AND length(ns) = 11"
COPY = "(data_key, sealed) = (SELECT data_key, sealed FROM versions WHERE {})"
COPY_ALL = "(id, data_key, sealed) = (SELECT id, data_key, sealed FROM versions WHERE {})"
OTHER_KEY, OTHER_NAMESPACE, OTHER_USER = "key = CAST('other' AS BLOB)", "length(ns) > 11", "user = 'bob'"
TAMPERED = {
    "from another key": COPY.format(OTHER_KEY),
    "from another key, with its id": COPY_ALL.format(OTHER_KEY),
    "from another namespace": COPY.format(OTHER_NAMESPACE),
    "from another namespace, with its id": COPY_ALL.format(OTHER_NAMESPACE),
    "from another user": COPY.format(OTHER_USER),
    "from another user, with its id": COPY_ALL.format(OTHER_USER),
    "from an older version": COPY.format("ended_at IS NOT NULL"),
    "another data key": "data_key = data_key + 1",
    "no such data key": "data_key = 99",
    "no data key": "data_key = NULL",
    "another id": "id = randomblob(16)",
    "cut short": "sealed = substr(sealed, 1, length(sealed) - 1)",
    "empty": "sealed = x''",
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_ciphertext_that_was_altered_or_moved_does_not_open(folder: Path, change: str) -> None:
    edit(folder, f"UPDATE versions SET {change} {THE_ROW}")
    with opened(folder) as memory:
        with pytest.raises(Unreadable):
            memory.as_user("alice").get(HOME, "key")
        assert any(each.wrong for each in memory.doctor())
        assert memory.as_user("alice").get(HOME, "other")


def test_a_row_that_was_moved_whole_does_not_open_at_its_new_place(folder: Path) -> None:
    edit(folder, f"UPDATE versions SET key = CAST('new' AS BLOB) {THE_ROW}")
    with opened(folder) as memory, pytest.raises(Unreadable):
        memory.as_user("alice").get(HOME, "new")


def test_a_data_key_that_was_altered_or_given_to_another_subject_does_not_open(folder: Path) -> None:
    edit(folder, """UPDATE data_keys SET wrapped = (SELECT wrapped FROM data_keys WHERE subject = 'user:bob')
                    WHERE subject = 'user:alice'""")  # fmt: skip
    with opened(folder) as memory:
        with pytest.raises(AlcoveError, match="does not open"):
            memory.as_user("alice").get(HOME, "key")
        assert memory.as_user("bob").get(("user", "bob"), "key")


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[Vault]:
    engine = Engine(tmp_path / "a.db", clock=system_clock, busy_timeout=1, on_create=lambda: None)
    yield Vault(engine.data_keys, MemoryKey())
    engine.close()


def test_one_data_key_too_many_lets_go_of_the_oldest_alone(
    safe: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "_CACHE_SIZE", 3)
    made = [safe.key(f"user:{name}") for name in USERS]
    assert [safe.key(f"user:{name}") is key for name, key in zip(USERS[1:], made[1:], strict=True)] == [
        True
    ] * 3
    again = safe.key(f"user:{USERS[0]}")
    assert again is not made[0]
    assert again.raw == made[0].raw


@given(plain=st.binary(max_size=40), place=st.binary(max_size=20), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_opens_only_unaltered_and_with_what_it_was_bound_to(
    safe: Vault, plain: bytes, place: bytes, data: st.DataObject
) -> None:
    alice, bob = safe.key("user:alice"), safe.key("user:bob")
    sealed = alice.seal(plain, place)
    assert safe.open(alice.id, sealed, place) == plain
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    altered = (int.from_bytes(sealed, "big") ^ (1 << bit)).to_bytes(len(sealed), "big")
    elsewhere = data.draw(st.binary(max_size=20).filter(lambda other: other != place))
    for id, text, bound in [
        (alice.id, altered, place),
        (alice.id, sealed, elsewhere),
        (bob.id, sealed, place),
    ]:
        with pytest.raises(Unreadable):
            safe.open(id, text, bound)


def test_each_owner_and_each_shared_root_has_a_data_key_of_its_own(safe: Vault) -> None:
    places = ["user:alice", "user:bob", "user", "pool:news", "room:pool", "user:pool", "user:room%3Apool"]
    subjects = [subject_of(Namespace.parse(place)) for place in places]
    assert len({safe.key(subject).raw for subject in subjects}) == len(places)
    assert subject_of(Namespace.parse("agent:bot:u:alice")) == subjects[0]
    assert subject_of(Namespace.parse("pool:sports")) == subject_of(Namespace.parse("pool:news"))


def test_rotation_wraps_every_data_key_anew_and_keeps_the_old_key_readable(folder: Path) -> None:
    backup = on_disk(folder)["memory.db"]
    wrapped = set(edit(folder, "SELECT wrapped FROM data_keys"))
    with opened(folder) as memory:
        *_, last = memory.rotate_keys()
        assert last.rewrapped == len(wrapped) == len(USERS) + 1
        assert_all_readable(memory)
    assert wrapped_by(folder) == {last.active}
    assert not wrapped & set(edit(folder, "SELECT wrapped FROM data_keys"))
    assert KeyFile(key_file(folder)).load()[0].id == last.active
    with opened(folder) as memory:
        assert_all_readable(memory)
    (folder / "memory.db").write_bytes(backup)
    with opened(folder) as memory:
        assert_all_readable(memory)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_rotation_stopped_half_way_is_finished_later_without_another_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(vault, "_REWRAP_BATCH", 2)
    if steps == 0:  # stopped between making the key and using it
        KeyFile(key_file(folder)).renew()
    with opened(folder) as memory:
        rotation = memory.rotate_keys()
        for _ in range(steps):
            next(rotation)
        assert_all_readable(memory)
    assert len(wrapped_by(folder)) == (2 if steps else 1)
    keys = on_disk(folder)["memory.db.key"]
    assert len(keys.split()) == 2
    with opened(folder) as memory:
        assert_all_readable(memory)
        *_, last = memory.rotate_keys()
        assert last.rewrapped == len(USERS) + 1 - 2 * steps
        assert_all_readable(memory)
    assert on_disk(folder)["memory.db.key"] == keys
    assert wrapped_by(folder) == {last.active}


def test_another_open_handle_keeps_working_after_a_rotation(folder: Path) -> None:
    with opened(folder) as one, opened(folder) as other:
        for rotating, user in [(one, "erin"), (other, "frank")]:
            list(rotating.rotate_keys())
            for handle in (one, other):
                handle.as_user(user).put(("user", user), "key", {"n": 1})
                assert_all_readable(handle)
    with opened(folder) as memory:
        assert_all_readable(memory)


def test_rotations_at_the_same_time_lose_no_key(folder: Path) -> None:
    start = threading.Barrier(3, timeout=30)

    def rotate(handle: Alcove) -> None:
        for _ in range(20):
            start.wait()
            list(handle.rotate_keys())

    with opened(folder) as a, opened(folder) as b, opened(folder) as c, ThreadPoolExecutor(3) as pool:
        list(pool.map(rotate, [a, b, c]))
    with opened(folder) as memory:
        assert_all_readable(memory)
