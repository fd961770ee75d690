"""Asks the policy: may they, what are its attributes, where may they look."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import regorus

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
_encode = msgspec.json.encode


class Narrowed(NamedTuple):
    """Where a reader may look: this subtree, these attributes, only this owner's private rooms."""

    prefix: Namespace
    conditions: Filter
    owner: str | None


class Policy:
    """The active bundle. Decisions are made in the calling thread; `reload` swaps it for all of them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._bundle = _tried(Bundle.load(folder))

    def reload(self) -> None:
        """Reads the folder again; a bundle that does not work leaves the old one active and raises."""
        self._bundle = _tried(Bundle.load(self._folder))

    def authorise(
        self,
        principal: Principal,
        operation: Literal["read", "write", "delete"],
        namespace: Namespace,
        key: str,
        value: bytes | None = None,
        index: bytes | None = None,
    ) -> None:
        """Raises `PermissionDenied` with the policy's reason unless it allows this operation."""
        content = b"" if value is None else b',"value":%b,"index":%b' % (value, index or b"{}")
        question = b'{"operation":"%b","namespace":%b,"key":%b%b,"context":%b}' % (
            operation.encode(), _encode(namespace), _encode(key), content, principal.context,
        )  # fmt: skip
        decision = _Asked(self._bundle, question).plain(DECISION)
        if not isinstance(decision, dict) or decision.get("allow") is not True:
            reason = decision.get("reason") if isinstance(decision, dict) else None
            raise PermissionDenied(reason if isinstance(reason, str) else "the policy does not allow it")

    def attributes(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> bytes:
        """The attributes of a memory, as compact JSON."""
        question = b'{"namespace":%b,"key":%b,"value":%b,"index":%b,"context":%b}' % (
            _encode(namespace), _encode(key), value, index or b"{}", principal.context,
        )  # fmt: skip
        attributes = _Asked(self._bundle, question).exact(ATTRIBUTES)
        if attributes is None:
            return b"{}"
        if not isinstance(attributes, dict):
            raise PolicyError("attributes.rego: expected `attributes` to be an object")
        try:
            return checks.json(attributes, "attributes")
        except InvalidRequest as error:
            raise PolicyError(f"attributes.rego: {error.message}") from None

    def narrow(
        self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None = None
    ) -> Narrowed:
        """Where the caller may look, at most; raises `PermissionDenied` where the policy is silent."""
        question = b'{"namespace_prefix":%b,"filter":%b,"context":%b}' % (
            _encode(prefix), _encode(filter or {}), principal.context,
        )  # fmt: skip
        asked = _Asked(self._bundle, question)
        narrowed, conditions, owner = asked.plain(PREFIX), asked.exact(CONDITIONS), asked.plain(OWNER)
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


class _Asked:
    """One question put to this thread's engine for a bundle."""

    def __init__(self, bundle: Bundle, question: bytes) -> None:
        self._engine = _engine(bundle)
        try:
            self._engine.set_input_json(question.decode())
        except RuntimeError as error:
            raise PolicyError(_first_lines(error)) from None

    def plain(self, rule: str) -> object:
        """A rule's value, None where it is undefined; quick, but every number is a float."""
        try:
            return self._engine.eval_rule(rule)
        except RuntimeError as error:
            raise PolicyError(_first_lines(error)) from None

    def exact(self, rule: str) -> object:
        """A rule's value with its integers kept."""
        try:
            text = self._engine.eval_rule_as_json(rule)
        except RuntimeError as error:
            raise PolicyError(_first_lines(error)) from None
        return None if text == _UNDEFINED else msgspec.json.decode(text)


_local = threading.local()


def _engine(bundle: Bundle) -> regorus.Engine:
    """This thread's engine for a bundle.

    An engine may be used, and even be dropped, only on the thread that made it. The cache therefore
    belongs to the thread and not to a `Policy`, and a thread makes room in it by itself.
    """
    engines: OrderedDict[Bundle, regorus.Engine] = _local.__dict__.setdefault("engines", OrderedDict())
    engine = engines.get(bundle)
    if engine is None:
        engine = engines[bundle] = _compiled(bundle)
        if len(engines) > _ENGINES_KEPT:
            engines.popitem(last=False)
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
        policy.authorise(stranger, "write", elsewhere, "key", b"{}")
        return True
    return False


def _first_lines(error: RuntimeError) -> str:
    """The engine's message with file and line, without its native stack."""
    return str(error).split("Stack backtrace:")[0].strip()
