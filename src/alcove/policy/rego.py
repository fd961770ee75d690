"""Asks the policy: may they, what are its attributes, where may they look."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import regorus

from alcove.core.errors import InvalidRequest, PermissionDenied, PolicyError, PolicyFailed
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.policy.rules import Answer, Bundle, Question, Rules, value
from alcove.store import validation
from alcove.store.filters import Filter

log = logging.getLogger("alcove")
_PLACE = re.compile(r"--> ((?:authz|attributes|filter)\.rego:\d+:\d+)\n")
_FILES = {"_attributes": "attributes.rego", "_narrowed": "filter.rego"}


class Narrowed(NamedTuple):
    """Where a reader may look: this subtree, these attributes, only this owner's private rooms."""

    prefix: Namespace
    conditions: Filter
    owner: str | None
    written_by: tuple[str | None, ...] | None = None


class Policy:
    """The active bundle. Decisions are made in the calling thread; `reload` swaps it for all of them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._stored: Mapping[str, str] = {}
        self._changing = threading.Lock()
        self.on_denied: Callable[[Principal, str], None] = lambda principal, operation: None
        self._rules = self.tried({})

    @property
    def bundle(self) -> Bundle:
        """The texts that decide."""
        return self._rules.bundle

    def tried(self, texts: Mapping[str, str]) -> Rules:
        """The rules of these texts, the others being the folder's or the built-in ones; not active yet."""
        for name in texts:
            if name not in Bundle._fields:
                raise InvalidRequest(name, f"one of the policies {', '.join(Bundle._fields)}")
        return _tried(Bundle.load(self._folder)._replace(**texts))

    def use(self, stored: Mapping[str, str]) -> None:
        """Makes texts that were stored decide, over those of the folder."""
        with self._changing:
            if stored != self._stored:
                self._rules, self._stored = self.tried(stored), stored

    def reload(self) -> None:
        """Reads the folder again; a bundle that does not work leaves the old one active and raises."""
        with self._changing:
            self._rules = self.tried(self._stored)

    def check(self) -> None:
        """Raises unless the active bundle answers every kind of question."""
        _ask_everything(self._rules.bundle)

    def authorise(
        self, principal: Principal, operation: Literal["read", "delete"], namespace: Namespace, key: str
    ) -> None:
        """Raises `PermissionDenied` with the policy's reason unless it allows this operation."""
        asked = {"operation": operation, "namespace": namespace, "key": key, "context": principal.context}
        self._decide(principal, operation, asked)

    def authorise_write(
        self,
        principal: Principal,
        namespace: Namespace,
        key: str,
        value: bytes,
        index: bytes | None,
        operation: Literal["write", "import"] = "write",
    ) -> None:
        """The same for a write or an import, which the policy may judge by its content."""
        content = _content(principal, namespace, key, value, index)
        self._decide(principal, operation, {**content, "operation": operation})

    def _decide(self, principal: Principal, operation: str, question: Question) -> None:
        reason = self._answer(question, _refusal)
        if reason is not None:
            self.on_denied(principal, operation)
            raise PermissionDenied(reason)

    def attributes(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> bytes:
        """The attributes of a memory, as compact JSON."""
        return self._answer(_content(principal, namespace, key, value, index), _attributes)

    def narrow(
        self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None = None
    ) -> Narrowed:
        """Where the caller may look, at most; raises `PermissionDenied` where the policy is silent."""
        narrowed = self._answer(_prefix(principal, prefix, msgspec.json.encode(filter or {})), _narrowed)
        if narrowed is None:
            self.on_denied(principal, "search")
            raise PermissionDenied("the policy does not say where this caller may look")
        return narrowed

    def _answer(self, question: Question, find: Callable[[regorus.Engine], Answer]) -> Answer:
        try:
            return self._rules.answer(question, find)
        except PolicyError as error:
            place = _PLACE.match(error.message)  # and no more: the engine's words quote what it was given
            file = _FILES.get(find.__name__, "authz.rego")
            log.error("the policy failed at %s", place[1] if place else file)
            raise PolicyFailed("the policy failed to decide; the server's log says where") from None


def _content(
    principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
) -> Question:
    """What a policy is asked about something to be stored."""
    return {"namespace": namespace, "key": key, "value": value, "index": index or b"{}",
            "context": principal.context}  # fmt: skip


def _prefix(principal: Principal, prefix: Namespace, filter: bytes) -> Question:
    """What a policy is asked about somebody who looks for something."""
    return {"namespace_prefix": prefix, "filter": filter, "context": principal.context}


def _refusal(engine: regorus.Engine) -> str | None:
    """Why the policy does not allow it; None where it does."""
    decision = value(engine, "authz.decision")
    if isinstance(decision, dict) and decision.get("allow") is True:
        return None
    reason = decision.get("reason") if isinstance(decision, dict) else None
    return reason if isinstance(reason, str) else "the policy does not allow it"


def _attributes(engine: regorus.Engine) -> bytes:
    attributes = value(engine, "attributes.attributes")
    if attributes is None:
        return b"{}"
    if not isinstance(attributes, dict):
        raise PolicyError("attributes.rego: expected `attributes` to be an object")
    if not {str}.issuperset(map(type, attributes.values())):
        attributes = value(engine, "attributes.attributes", exact=True)
    try:
        return validation.json(attributes, "attributes")
    except InvalidRequest as error:
        raise PolicyError(f"attributes.rego: {error.message}") from None


def _narrowed(engine: regorus.Engine) -> Narrowed | None:
    narrowed, owner = value(engine, "filter.namespace_prefix"), value(engine, "filter.owner")
    conditions = value(engine, "filter.attribute_filter", exact=True)
    authors = value(engine, "filter.written_by", exact=True)
    if narrowed is None or conditions is None:
        return None
    if not isinstance(owner, str | None):  # passed over, it would show everybody's rooms
        raise PolicyError("filter.rego: expected `owner` to be a string")
    if authors is not None and not (
        isinstance(authors, list) and all(isinstance(author, str | None) for author in authors)
    ):
        raise PolicyError("filter.rego: expected `written_by` to be a list of strings and nulls")
    try:
        return Narrowed(
            Namespace.checked(narrowed, "namespace_prefix"),
            Filter.parse(conditions, "attribute_filter"),
            owner,
            None if authors is None else tuple(authors),
        )
    except InvalidRequest as error:
        raise PolicyError(f"filter.rego: {error.message}") from None


def _tried(bundle: Bundle) -> Rules:
    """Its rules, once it has answered every question; some mistakes show only when evaluated."""
    _refuse_a_careless_engine()
    _ask_everything(bundle)
    return Rules(bundle)


@functools.cache
def _refuse_a_careless_engine() -> None:
    """A Rego engine that misreads a policy may allow everybody; ours must turn a stranger away."""
    if _ask_everything(Bundle.load()):
        raise PolicyError("the Rego engine lets strangers into others' namespaces: it is unfit for use")


def _ask_everything(bundle: Bundle) -> bool:
    """Puts each kind of question once; whether a stranger may write to somebody else's namespace."""
    rules, somebody = Rules(bundle), Principal("somebody")
    elsewhere = Namespace(("user", "somebody else"))
    content = _content(somebody, elsewhere, "key", b"{}", b"{}")
    rules.answer(content, _attributes)
    rules.answer(_prefix(somebody, elsewhere, b"{}"), _narrowed)
    return rules.answer({**content, "operation": "write"}, _refusal) is None
