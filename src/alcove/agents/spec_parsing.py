"""Everything that is wrong with a tree at once, where a decoder stops at its first objection."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct

Path: TypeAlias = tuple[str | int, ...]


def objections(value: object, kind: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Where `value` is not what `kind` says, and what was expected there."""
    bare = _bare(kind)
    if get_origin(bare) in (Union, types.UnionType):
        if value is None and type(None) in get_args(bare):
            return
        (bare,) = (each for each in get_args(bare) if each is not type(None))
        bare = _bare(bare)
    if isinstance(bare, type) and issubclass(bare, Struct):
        yield from _block(value, bare, path)
    elif get_origin(bare) is tuple and isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from objections(each, get_args(bare)[0], (*path, position))
        if not value and any(meta.min_length for meta in _metas(kind)):
            yield path, "a list that is not empty"
    else:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError):
            yield path, expectation(kind)


def expectation(kind: Any) -> str:
    """What a field takes, in words."""
    bare, metas = _bare(kind), _metas(kind)
    if get_origin(bare) in (Union, types.UnionType):
        return " or ".join(expectation(each) for each in get_args(bare))
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(get_args(bare))
    if get_origin(bare) is tuple:
        return "a list"
    low = next((meta.ge for meta in metas if meta.ge is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    between = "" if low is None else f" from {low} to {high}"
    longest = next((meta.max_length for meta in metas if meta.max_length), None)
    names = {bool: "true or false", int: f"a whole number{between}", float: f"a number{between}"}
    names |= {type(None): "nothing", str: f"text of 1 to {longest} characters" if longest else "text"}
    return names.get(bare, "a block of fields")


def spell(path: Path) -> str:
    """A path as people write it: `agents[0].memory.pools[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _block(value: object, struct: type[Struct], path: Path) -> Iterator[tuple[Path, str]]:
    if not isinstance(value, dict):
        yield path, f"a block with {', '.join(struct.__struct_fields__)}"
        return
    hints = _hints(struct)
    for name in value:
        if name not in hints:
            close = difflib.get_close_matches(str(name), hints, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            yield (*path, str(name)), f"no such field{hint}; there are {', '.join(hints)}"
    for field in msgspec.structs.fields(struct):
        if field.name in value:
            yield from objections(value[field.name], hints[field.name], (*path, field.name))
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            yield (*path, field.name), f"{expectation(hints[field.name])}; it is required"


@functools.cache
def _hints(struct: type[Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _bare(kind: Any) -> Any:
    return _bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _metas(kind: Any) -> list[Meta]:
    return list(get_args(kind)[1:]) if get_origin(kind) is Annotated else []
