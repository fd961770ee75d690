"""Asks the policy: may they, what are its attributes, where may they look."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import regorus
from msgspec import Raw, Struct

from alcove import checks
from alcove.errors import InvalidRequest, PermissionDenied, PolicyError
from alcove.filters import Filter
from alcove.namespace import Namespace
from alcove.policy.bundle import Bundle
from alcove.principal import Principal

DECISION = "data.memories.authz.decision"
ATTRIBUTES = "data.memories.attributes.attributes"
PREFIX = "data.memories.filter.namespace_prefix"
CONDITIONS = "data.memories.filter.attribute_filter"
OWNER = "data.memories.filter.owner"

_ENGINES_KEPT = 4
_UNDEFINED = '"<undefined>"'


class Narrowed(NamedTuple):
    """Where a reader may look: this subtree, these attributes, only this owner's private rooms."""

    prefix: Namespace
    conditions: Filter
    owner: str | None


class AuthzInput(Struct, frozen=True, gc=False):
    """What `authz.rego` is asked about a read or a delete."""

    operation: Literal["read", "write", "delete"]
    namespace: Namespace
    key: str
    context: Raw


class WriteInput(AuthzInput, frozen=True, gc=False):
    """What `authz.rego` is asked about a write: the content, too."""

    value: Raw
    index: Raw


class AttributesInput(Struct, frozen=True, gc=False):
    """What `attributes.rego` is asked."""

    namespace: Namespace
    key: str
    value: Raw
    index: Raw
    context: Raw


class FilterInput(Struct, frozen=True, gc=False):
    """What `filter.rego` is asked."""

    namespace_prefix: Namespace
    filter: Mapping[str, object]
    context: Raw


class Policy:
    """The active bundle. Decisions are made in the calling thread; `reload` swaps it for all of them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._bundle = _tried(Bundle.load(folder))

    def reload(self) -> None:
        """Reads the folder again; a bundle that does not work leaves the old one active and raises."""
        self._bundle = _tried(Bundle.load(self._folder))

    def check(self) -> None:
        """Raises unless the active bundle answers every kind of question."""
        _ask_everything(self._bundle)

    def authorise(
        self, principal: Principal, operation: Literal["read", "delete"], namespace: Namespace, key: str
    ) -> None:
        """Raises `PermissionDenied` with the policy's reason unless it allows this operation."""
        self._decide(AuthzInput(operation, namespace, key, principal.context))

    def authorise_write(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> None:
        """The same for a write, which the policy may judge by its content."""
        content = Raw(value), Raw(index or b"{}")
        self._decide(WriteInput("write", namespace, key, principal.context, *content))

    def _decide(self, question: AuthzInput) -> None:
        decision = _value(_asked(self._bundle, question), DECISION)
        if not isinstance(decision, dict) or decision.get("allow") is not True:
            reason = decision.get("reason") if isinstance(decision, dict) else None
            raise PermissionDenied(reason if isinstance(reason, str) else "the policy does not allow it")

    def attributes(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> bytes:
        """The attributes of a memory, as compact JSON."""
        content = Raw(value), Raw(index or b"{}")
        engine = _asked(self._bundle, AttributesInput(namespace, key, *content, principal.context))
        attributes = _value(engine, ATTRIBUTES)
        if attributes is None:
            return b"{}"
        if not isinstance(attributes, dict):
            raise PolicyError("attributes.rego: expected `attributes` to be an object")
        if not {str}.issuperset(map(type, attributes.values())):
            attributes = _exact_value(engine, ATTRIBUTES)
        try:
            return checks.json(attributes, "attributes")
        except InvalidRequest as error:
            raise PolicyError(f"attributes.rego: {error.message}") from None

    def narrow(
        self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None = None
    ) -> Narrowed:
        """Where the caller may look, at most; raises `PermissionDenied` where the policy is silent."""
        engine = _asked(self._bundle, FilterInput(prefix, filter or {}, principal.context))
        narrowed, owner = _value(engine, PREFIX), _value(engine, OWNER)
        conditions = _exact_value(engine, CONDITIONS)
        if narrowed is None or conditions is None:
            raise PermissionDenied("the policy does not say where this caller may look")
        try:
            return Narrowed(
                Namespace.checked(narrowed, "namespace_prefix"),
                Filter.parse(conditions, "attribute_filter"),
                owner if isinstance(owner, str) else None,
            )
        except InvalidRequest as error:
            raise PolicyError(f"filter.rego: {error.message}") from None


def _asked(bundle: Bundle, question: Struct) -> regorus.Engine:
    """This thread's engine for a bundle, with a question put to it."""
    engine = _engine(bundle)
    try:
        engine.set_input_json(msgspec.json.encode(question).decode())
    except RuntimeError as error:
        raise PolicyError(_first_lines(error)) from None
    return engine


def _value(engine: regorus.Engine, rule: str) -> object:
    """A rule's value, None where it is undefined; quick, but every number in it is a float."""
    try:
        return engine.eval_rule(rule)
    except RuntimeError as error:
        raise PolicyError(_first_lines(error)) from None


def _exact_value(engine: regorus.Engine, rule: str) -> object:
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
            raise PolicyError(_first_lines(error)) from None
    for rule in (DECISION, ATTRIBUTES, PREFIX, CONDITIONS, OWNER):
        # To the engine a rule that no file defines is an error; this makes it merely undefined.
        _, *package, name = rule.split(".")
        engine.add_policy(f"{name}, if undefined", f"package {'.'.join(package)}\n{name} := null if false")
    return engine


def _tried(bundle: Bundle) -> Bundle:
    """The bundle, once it has answered every question; some mistakes show only when evaluated."""
    _refuse_a_careless_engine()
    _ask_everything(bundle)
    return bundle


@functools.cache
def _refuse_a_careless_engine() -> None:
    """A Rego engine that misreads a policy may allow everybody; ours must turn a stranger away."""
    if _ask_everything(Bundle.load()):
        raise PolicyError("the Rego engine lets strangers into others' namespaces: it is unfit for use")


def _ask_everything(bundle: Bundle) -> bool:
    """Puts each kind of question once; whether a stranger may read somebody else's memory."""
    policy = Policy.__new__(Policy)
    policy._bundle = bundle
    stranger, elsewhere = Principal("somebody"), Namespace(("user", "somebody else"))
    policy.attributes(stranger, elsewhere, "key", b"{}", None)
    with contextlib.suppress(PermissionDenied):
        policy.narrow(stranger, elsewhere)
    with contextlib.suppress(PermissionDenied):
        policy.authorise_write(stranger, elsewhere, "key", b"{}", None)
        return True
    return False


def _first_lines(error: RuntimeError) -> str:
    """The engine's message with file and line, without its native stack."""
    return str(error).split("Stack backtrace:")[0].strip()
