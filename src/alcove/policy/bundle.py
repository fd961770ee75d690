"""The three policy texts of one store, each falling back to the built-in one."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from alcove.core.errors import PolicyError


class Bundle(NamedTuple):
    """The source of `authz.rego`, `attributes.rego` and `filter.rego`."""

    authz: str
    attributes: str
    filter: str

    @classmethod
    def load(cls, folder: Path | None = None) -> Bundle:
        """The files of a folder, with the built-in text for each one that is not there."""
        if folder is not None and not folder.is_dir():
            raise PolicyError(f"policy folder {folder}: there is no such folder")
        return cls(*(_text(f"{name}.rego", folder) for name in cls._fields))

    def reads(self) -> frozenset[str] | None:
        """The fields of `input` that the texts name; None where an answer may depend on more than those.

        A bare `input` may be read for any field, and what `_RESTLESS` names changes by itself.
        """
        texts = "\n".join(self)
        fields = frozenset(_INPUT.findall(texts))
        return None if "" in fields or _RESTLESS.search(texts) else fields


_INPUT = re.compile(r"\binput\b(?:\.(\w+))?")
_RESTLESS = re.compile(r"\b(?:time|rand|uuid|http|net|io|opa|rego(?!\.v1\b))\s*[.\[]|\bprint\b")


def _text(name: str, folder: Path | None) -> str:
    if folder is not None and (folder / name).exists():
        try:
            return (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"policy file {folder / name} cannot be read: {error}") from None
    return (files("alcove.policy") / name).read_text(encoding="utf-8")
