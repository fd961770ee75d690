"""A bundle at work: an engine for each thread, and the answers that were given already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import regorus
from msgspec import Struct

from alcove.core.errors import InvalidRequest, PolicyError
from alcove.policy.bundle import Bundle

DECISION = "data.memories.authz.decision"
ATTRIBUTES = "data.memories.attributes.attributes"
PREFIX = "data.memories.filter.namespace_prefix"
CONDITIONS = "data.memories.filter.attribute_filter"
OWNER = "data.memories.filter.owner"
WRITTEN_BY = "data.memories.filter.written_by"

_ENGINES_KEPT = 4
_ANSWERS_KEPT = 20_000
_LONGEST_KEPT = 1000
_UNDEFINED = '"<undefined>"'

Answer = TypeVar("Answer")


class Rules:
    """A bundle and the answers it has given.

    Rego has no state: where a bundle names every field it reads and nothing that changes by itself, the same
    fields have the same answer, and looking it up is the evaluation. Other bundles are evaluated each time.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._reads = bundle.reads()
        self._given: dict[tuple[object, bytes], Any] = {}

    def answer(self, question: Struct, find: Callable[[regorus.Engine], Answer]) -> Answer:
        """What `find` finds in an engine that has been asked; only what the bundle reads is put to it."""
        if self._reads is None:
            return find(_asked(self.bundle, msgspec.json.encode(question)))
        read = {f: getattr(question, f) for f in question.__struct_fields__ if f in self._reads}
        known = find, msgspec.json.encode(read)
        try:
            return self._given[known]  # type: ignore[no-any-return]
        except KeyError:
            answer = find(_asked(self.bundle, known[1]))
        if len(known[1]) <= _LONGEST_KEPT:
            if len(self._given) >= _ANSWERS_KEPT:
                self._given.clear()
            self._given[known] = answer
        return answer

    def say(self, question: Mapping[str, object]) -> dict[str, object]:
        """What every rule says to any input, None where it is undefined."""
        engine = _asked(self.bundle, msgspec.json.encode(question))
        return {
            rule.rpartition(".")[2]: exact_value(engine, rule)
            for rule in (DECISION, ATTRIBUTES, PREFIX, CONDITIONS, OWNER, WRITTEN_BY)
        }


def _asked(bundle: Bundle, question: bytes) -> regorus.Engine:
    """This thread's engine for a bundle, with a question put to it."""
    engine = _engine(bundle)
    try:
        engine.set_input_json(question.decode())
    except RuntimeError as error:
        raise InvalidRequest("input", f"JSON that the policy engine reads ({_first_lines(error)})") from None
    return engine


def value(engine: regorus.Engine, rule: str) -> object:
    """A rule's value, None where it is undefined; quick, but every number in it is a float."""
    try:
        return engine.eval_rule(rule)
    except RuntimeError as error:
        raise PolicyError(_first_lines(error)) from None


def exact_value(engine: regorus.Engine, rule: str) -> object:
    """A rule's value with its integers kept."""
    try:
        text = engine.eval_rule_as_json(rule)
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
    for rule in (DECISION, ATTRIBUTES, PREFIX, CONDITIONS, OWNER, WRITTEN_BY):
        # To the engine a rule that no file defines is an error; this makes it merely undefined.
        _, *package, name = rule.split(".")
        engine.add_policy(f"{name}, if undefined", f"package {'.'.join(package)}\n{name} := null if false")
    return engine


def _first_lines(error: RuntimeError) -> str:
    """The engine's message with file and line, without its native stack."""
    return str(error).split("Stack backtrace:")[0].strip()
