"""Specs follow their files; a broken one leaves the last valid specs active and says so."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from alcove.agents.specs import loading
from alcove.agents.specs.loading import WatchedSpecs
from alcove.agents.specs.reader import InvalidSpecs


class Seconds:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agents.yaml"
    path.write_text("agents: [{name: a}]")
    return path


def test_a_change_is_seen_within_a_second_and_not_looked_for_before(file: Path, seconds: Seconds) -> None:
    watched = WatchedSpecs(file, clock=seconds)
    first = watched.current()
    file.write_text("agents: [{name: b}]")
    seconds.now += 0.9
    assert watched.current() is first
    seconds.now += 0.2
    assert list(watched.current().agents) == ["b"]


def test_a_broken_file_keeps_the_last_good_version(
    file: Path, seconds: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedSpecs(file, clock=seconds)
    good = watched.current()
    file.write_text("agents: [{name: u}]")
    with caplog.at_level(logging.INFO, "alcove"):
        for _ in range(3):
            seconds.now += 2
            assert watched.current() is good
        assert [problem.path for problem in watched.problems] == ["agents[0].name"]
        assert len(caplog.records) == 1, "the same problem is logged once"
        file.write_text("agents: [{name: c}]")
        seconds.now += 2
        assert list(watched.current().agents) == ["c"]
    assert watched.problems == ()
    assert "reloaded" in caplog.text


def test_a_file_that_vanishes_is_trouble_and_not_an_empty_catalogue(file: Path, seconds: Seconds) -> None:
    watched = WatchedSpecs(file, clock=seconds)
    file.unlink()
    seconds.now += 2
    assert list(watched.current().agents) == ["a"]
    assert "exists" in watched.problems[0].message


def test_a_change_that_keeps_time_and_size_is_seen_too(file: Path, seconds: Seconds) -> None:
    watched = WatchedSpecs(file, clock=seconds)
    before = file.stat()
    file.write_text("agents: [{name: z}]")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    seconds.now += 2
    assert list(watched.current().agents) == ["z"]


def test_files_come_and_go_in_a_folder(file: Path, seconds: Seconds) -> None:
    watched = WatchedSpecs(file.parent, clock=seconds)
    (file.parent / "more.yml").write_text("agents: [{name: b}]")
    seconds.now += 2
    assert list(watched.current().agents) == ["a", "b"]
    file.unlink()
    seconds.now += 2
    assert list(watched.current().agents) == ["b"]


def test_an_unchanged_file_is_not_parsed_again(
    file: Path, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedSpecs(file, clock=seconds)
    monkeypatch.setattr(loading, "build_catalogue", lambda *_: pytest.fail("parsed again"))
    file.touch()
    seconds.now += 2
    watched.current()


def test_specs_that_are_broken_at_start_are_refused(file: Path) -> None:
    file.write_text("agents: [{name: u}]")
    with pytest.raises(InvalidSpecs):
        WatchedSpecs(file)
