"""Settings: defaults as documented, wrong ones refused by name when they are made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from alcove import Alcove, InvalidRequest, MemoryKey, Settings


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert settings.max_depth == 5
    assert settings.max_value_bytes == 1024 * 1024
    assert settings.max_index_fields == 64
    assert settings.max_index_bytes == 64 * 1024
    assert settings.max_batch == 1000
    assert settings.sweep_interval == 60
    assert settings.retention_days == 90
    assert dict(settings.retention_max_age) == {}


WHOLE = ["max_depth", "max_value_bytes", "max_index_fields", "max_index_bytes", "max_batch"]
NUMBERS = ["sweep_interval", "retention_days", "busy_timeout"]


def _refused(name: str, value: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        Settings(**{name: value})  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("name", WHOLE + NUMBERS)
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), True, False, None, "5", [5], b"5"])
def test_what_is_no_positive_number_is_refused_by_name(name: str, value: object) -> None:
    assert _refused(name, value).field == name


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [0, 1.5, 5.0])
def test_a_count_is_a_positive_whole_number(name: str, value: float) -> None:
    error = _refused(name, value)
    assert (error.field, error.expected) == (name, "a positive whole number")


@pytest.mark.parametrize("name", ["retention_days", "busy_timeout"])
def test_a_span_of_time_is_not_zero(name: str) -> None:
    assert _refused(name, 0).field == name


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [1, 0.25])
def test_a_span_of_time_may_be_whole_or_not(name: str, value: float) -> None:
    settings = Settings(**{name: value})  # type: ignore[arg-type]
    assert getattr(settings, name) == value


@pytest.mark.parametrize("value", ["localhost:6379", "http://host", "redis://", "unix:///socket", 6379])
def test_a_session_store_is_an_address_of_valkey_or_redis(value: object) -> None:
    assert _refused("session_store", value).field == "session_store"


def test_a_sweep_interval_of_zero_runs_no_sweep() -> None:
    assert Settings(sweep_interval=0).sweep_interval == 0
    assert Settings(sweep_interval=0.0).sweep_interval == 0


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), True, "7", None])
def test_a_maximum_age_that_is_no_positive_number_is_refused_with_its_root(days: float) -> None:
    assert _refused("retention_max_age", {"user": 30, "turns": days}).field == "retention_max_age.turns"


@pytest.mark.parametrize("ages", [None, [], ["user"], "user", 7, {("user", 1)}])
def test_maximum_ages_that_are_no_mapping_are_refused_by_name(ages: object) -> None:
    assert _refused("retention_max_age", ages).field == "retention_max_age"


@pytest.mark.parametrize("root", ["", 7, None, b"user", "\ud800"])
def test_a_maximum_age_for_what_can_be_no_root_is_refused(root: object) -> None:
    assert _refused("retention_max_age", {root: 1}).field.startswith("retention_max_age")


@pytest.mark.parametrize("settings", [{"retention_days": 1e9}, {"retention_max_age": {"user": 1e9}}])
def test_an_age_beyond_all_time_keeps_everything_or_is_refused(
    settings: dict[str, float], tmp_path: Path
) -> None:
    try:
        checked = Settings(sweep_interval=0, **settings)  # type: ignore[arg-type]
    except InvalidRequest:
        return
    with Alcove(tmp_path / "memory.db", settings=checked, keys=MemoryKey()) as memory:
        alice = memory.as_user("alice")
        alice.put("user:alice", "key", {"n": 1})
        alice.delete("user:alice", "key")
        memory.sweep()
        assert len(alice.history("user:alice", "key")) == 2


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="max_dept"):
        Settings(max_dept=3)  # type: ignore[call-arg]


def test_settings_do_not_change_once_they_are_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().max_depth = 9  # type: ignore[misc]
