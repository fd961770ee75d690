"""Asks the policy: may they, what are its attributes, where may they look.

The three texts of a bundle are evaluated by a Rego engine of the thread that asks, or answered from memory.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import regorus

from alcove.core import validation
from alcove.core.errors import InvalidRequest, PermissionDenied, PolicyError, PolicyFailed
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal

log = logging.getLogger("alcove")
_PLACE = re.compile(r"--> ((?:authz|attributes|filter)\.rego:\d+:\d+)\n")
_FILES = {"_attributes": "attributes.rego", "_narrowed": "filter.rego"}
RULES = (
    "authz.decision",
    "attributes.attributes",
    "filter.namespace_prefix",
    "filter.attribute_filter",
    "filter.owner",
    "filter.written_by",
    "filter.unowned_written_by",
)
"""What the texts may define, each below `data.memories`."""

_ENGINES_KEPT = 4
_ANSWERS_KEPT = 20_000
_LONGEST_KEPT = 1000
_LONGEST_TOLD = 600
"""Characters of an error, which repeats the line that it is about."""
_UNDEFINED = '"<undefined>"'

Answer = TypeVar("Answer")
Question = Mapping[str, str | tuple[str, ...] | bytes]
"""The fields of `input`; bytes among them are JSON."""


class Narrowed(NamedTuple):
    """Where a reader may look: this subtree, these attributes, only this owner's private rooms."""

    prefix: Namespace
    conditions: Filter
    owner: str | None
    written_by: tuple[str | None, ...] | None = None
    unowned_written_by: tuple[str | None, ...] | None = None


class Policy:
    """The active bundle. Decisions are made in the calling thread; `reload` swaps it for all of them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._stored: Mapping[str, str] = {}
        self._changing = threading.Lock()
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
        _refuse_a_careless_engine()
        bundle = Bundle.load(self._folder)._replace(**texts)
        _ask_everything(bundle)  # some mistakes show only when evaluated
        return Rules(bundle)

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

    @property
    def judges_content(self) -> bool:
        """Whether what it says of two writes by one caller to one namespace may differ."""
        reads = self._rules.reads
        return reads is None or not reads.isdisjoint(("key", "value", "index"))

    def authorise(
        self, principal: Principal, operation: Literal["read", "delete"], namespace: Namespace, key: str
    ) -> None:
        """Raises `PermissionDenied` with the policy's reason unless it allows this operation."""
        asked = {"operation": operation, "namespace": namespace, "key": key, "context": principal.context}
        if (reason := self._answer(asked, _refusal)) is not None:
            raise PermissionDenied(reason, operation=operation)

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
        if (reason := self._answer({**content, "operation": operation}, _refusal)) is not None:
            raise PermissionDenied(reason, operation=operation)

    def attributes(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> bytes:
        """The attributes of a memory, as compact JSON."""
        return self._answer(_content(principal, namespace, key, value, index), _attributes)

    def narrow(
        self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None = None
    ) -> Narrowed:
        """Where the caller may look, at most; raises `PermissionDenied` where the policy is silent.

        It raises for an agent too if the policy puts another prefix in place of the agent's room: a tool
        would show what is there as the content of the room.
        """
        narrowed = self._answer(_prefix(principal, prefix, msgspec.json.encode(filter or {})), _narrowed)
        if narrowed is None:
            raise PermissionDenied("the policy does not say where this caller may look", operation="search")
        if principal.agent is not None and narrowed.prefix[: len(prefix)] != prefix:
            raise PermissionDenied("the policy does not let this agent look there", operation="search")
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
        return validation.encode_json(attributes, "attributes")
    except InvalidRequest as error:
        raise PolicyError(f"attributes.rego: {error.message}") from None


def _narrowed(engine: regorus.Engine) -> Narrowed | None:
    narrowed, owner = value(engine, "filter.namespace_prefix"), value(engine, "filter.owner")
    conditions = value(engine, "filter.attribute_filter", exact=True)
    if narrowed is None or conditions is None:
        return None
    if not isinstance(owner, str | None):  # passed over, it would show everybody's rooms
        raise PolicyError("filter.rego: expected `owner` to be a string")
    try:
        return Narrowed(
            Namespace.checked(narrowed, "namespace_prefix"),
            Filter.parse(conditions, "attribute_filter", allow_pattern=False),
            owner,
            _authors(engine, "written_by"),
            _authors(engine, "unowned_written_by"),
        )
    except InvalidRequest as error:
        raise PolicyError(f"filter.rego: {error.message}") from None


def _authors(engine: regorus.Engine, rule: str) -> tuple[str | None, ...] | None:
    """The users that a rule of the filter names; None where it is undefined."""
    authors = value(engine, f"filter.{rule}", exact=True)
    if authors is None:
        return None
    if not (isinstance(authors, list) and all(isinstance(author, str | None) for author in authors)):
        raise PolicyError(f"filter.rego: expected `{rule}` to be a list of strings and nulls")
    return tuple(authors)


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
        self.reads = bundle.reads()
        self._given: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def answer(self, question: Question, find: Callable[[regorus.Engine], Answer]) -> Answer:
        """What `find` finds in an engine that has been asked; only what the bundle reads is put to it."""
        if self.reads is None:
            return find(_asked(self.bundle, _json(question)))
        known = (find, *map(question.get, self.reads))
        try:
            return self._given[known]  # type: ignore[no-any-return]
        except KeyError:
            asked = _json({name: question[name] for name in self.reads if name in question})
            answer = find(_asked(self.bundle, asked))
        if len(asked) <= _LONGEST_KEPT:
            self._given[known] = answer
            if len(self._given) > _ANSWERS_KEPT:
                self._given.popitem(last=False)
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
    return str(error).split("Stack backtrace:")[0].strip()[:_LONGEST_TOLD]
