"""ARCHITECTURE.md, its picture and CONTRIBUTING.md name folders and files as they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "alcove"


def _layers() -> list[list[str]]:
    """The layers of the import-linter contract, the highest first."""
    text = (ROOT / "pyproject.toml").read_text()
    (contract,) = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return [layer.split(" | ") for layer in contract["layers"]]


def test_the_picture_shows_the_layers_of_the_contract() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "house.svg")
    bold = [each for each in picture.iter() if each.get("font-weight") == "600"]
    assert [each.text for each in bold] == [folder for layer in _layers() for folder in layer]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_a_page_names_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?|\w+\.py)`", text)
    assert len(paths) > 10
    nested = [*PACKAGE.rglob("*")]
    for path in paths:
        places = [ROOT / path, PACKAGE / path, *(each for each in nested if each.match(path))]
        assert any(place.exists() for place in places), path


def test_every_folder_of_the_package_has_its_line() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {each.name for each in PACKAGE.iterdir() if each.is_dir() and each.name != "__pycache__"}
    assert folders == {*re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)}
