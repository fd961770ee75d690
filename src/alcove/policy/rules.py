"""The three policy texts of a store at work: an engine for each thread, and the answers that were given."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import regorus

from alcove.core.errors import InvalidRequest, PolicyError

RULES = (
    "authz.decision",
    "attributes.attributes",
    "filter.namespace_prefix",
    "filter.attribute_filter",
    "filter.owner",
    "filter.written_by",
)
"""What the texts may define, each below `data.memories`."""

_ENGINES_KEPT = 4
_ANSWERS_KEPT = 20_000
_LONGEST_KEPT = 1000
_UNDEFINED = '"<undefined>"'

Answer = TypeVar("Answer")
Question = Mapping[str, str | tuple[str, ...] | bytes]
"""The fields of `input`; bytes among them are JSON."""


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


class Rules:
    """A bundle and the answers it has given.

    Rego has no state: where a bundle names every field it reads and nothing that changes by itself, the same
    fields have the same answer, and looking it up is the evaluation. Other bundles are evaluated each time.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._reads = bundle.reads()
        self._given: dict[tuple[object, ...], Any] = {}

    def answer(self, question: Question, find: Callable[[regorus.Engine], Answer]) -> Answer:
        """What `find` finds in an engine that has been asked; only what the bundle reads is put to it."""
        if self._reads is None:
            return find(_asked(self.bundle, _json(question)))
        known = (find, *map(question.get, self._reads))
        try:
            return self._given[known]  # type: ignore[no-any-return]
        except KeyError:
            asked = _json({name: question[name] for name in self._reads if name in question})
            answer = find(_asked(self.bundle, asked))
        if len(asked) <= _LONGEST_KEPT:
            if len(self._given) >= _ANSWERS_KEPT:
                self._given.clear()
            self._given[known] = answer
        return answer

    def say(self, question: Mapping[str, object]) -> dict[str, object]:
        """What every rule says to any input, None where it is undefined."""
        engine = _asked(self.bundle, msgspec.json.encode(question))
        return {rule.partition(".")[2]: value(engine, rule, exact=True) for rule in RULES}


def _json(question: Question) -> bytes:
    fields = {name: msgspec.Raw(each) if isinstance(each, bytes) else each for name, each in question.items()}
    return msgspec.json.encode(fields)


def _asked(bundle: Bundle, question: bytes) -> regorus.Engine:
    """This thread's engine for a bundle, with a question put to it."""
    engine = _engine(bundle)
    try:
        engine.set_input_json(question.decode())
    except RuntimeError as error:
        raise InvalidRequest("input", f"JSON that the policy engine reads ({_first_lines(error)})") from None
    return engine


def value(engine: regorus.Engine, rule: str, *, exact: bool = False) -> object:
    """A rule's value, None where it is undefined; unless it is to be exact, every number in it is a float."""
    try:
        if not exact:
            return engine.eval_rule(f"data.memories.{rule}")
        text = engine.eval_rule_as_json(f"data.memories.{rule}")
    except RuntimeError as error:
        raise PolicyError(_first_lines(error)) from None
    return None if text == _UNDEFINED else msgspec.json.decode(text)


_local = threading.local()


def _engine(bundle: Bundle) -> regorus.Engine:
    """This thread's engine for a bundle.

    An engine may be used, and even be dropped, only on the thread that made it. The cache therefore
    belongs to the thread and not to a `Policy`, and a thread makes room in it by itself.
    """
    try:
        return _local.engines[bundle]  # type: ignore[no-any-return]
    except (AttributeError, KeyError):
        engines = _local.__dict__.setdefault("engines", {})
        while len(engines) >= _ENGINES_KEPT:
            del engines[next(iter(engines))]
        engine = engines[bundle] = _compiled(bundle)
        return engine


def _compiled(bundle: Bundle) -> regorus.Engine:
    engine = regorus.Engine()
    for name, text in zip(Bundle._fields, bundle, strict=True):
        try:
            engine.add_policy(f"{name}.rego", text)
        except RuntimeError as error:
            del engine  # here, and not with the error's frames on whatever thread lets go of those
            raise PolicyError(_first_lines(error)) from None
    for rule in RULES:
        # To the engine a rule that no file defines is an error; this makes it merely undefined.
        package, name = rule.split(".")
        engine.add_policy(f"{name}, if undefined", f"package memories.{package}\n{name} := null if false")
    return engine


def _first_lines(error: RuntimeError) -> str:
    """The engine's message with file and line, without its native stack."""
    return str(error).split("Stack backtrace:")[0].strip()
