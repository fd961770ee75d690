"""What is installed: the package as it is built, with the files beside its code."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

import alcove

PACKAGE = Path(alcove.__file__).parent


def test_a_wheel_has_every_file_of_the_package() -> None:
    """Also those that are no code, and would be left out where a line of .gitignore fits them."""
    there = {path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {path for path in there if "__pycache__" not in path.parts}
    assert {path.suffix for path in wanted} >= {".json", ".npy", ".rego", ".sql", ".toml", ".typed", ".yaml"}
    built = WheelBuilder(str(PACKAGE.parent.parent)).recurse_selected_project_files()
    assert {Path(file.distribution_path) for file in built} == wanted
