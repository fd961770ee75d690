"""Evaluates policies: whether a call is allowed, a memory's attributes, and where a caller may read.

The calling thread's own Rego engine evaluates the three texts of a bundle, unless the answer is cached.
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
_FILES = {"_attributes": "attributes.rego", "_read_scope": "filter.rego"}
RULES = (
    "authz.decision",
    "attributes.attributes",
    "filter.namespace_prefix",
    "filter.attribute_filter",
    "filter.owner",
    "filter.written_by",
    "filter.unowned_written_by",
)
"""The rules that the texts may define, each below `data.memories`."""

_MAX_ENGINES = 4
_MAX_ANSWERS = 20_000
_MAX_INPUT_BYTES = 1000
"""The longest input whose answer is cached."""
_MAX_ERROR_LENGTH = 600
"""Characters of an error, which quotes the line with the mistake."""
_UNDEFINED = '"<undefined>"'

Answer = TypeVar("Answer")
Question = Mapping[str, str | tuple[str, ...] | bytes]
"""The fields of `input`; bytes among them are JSON."""


class ReadScope(NamedTuple):
    """Where a caller may read: this subtree, these attributes, only this owner's private rooms."""

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
        self._rules = self.compile_rules({})

    @property
    def bundle(self) -> Bundle:
        """The active texts."""
        return self._rules.bundle

    def compile_rules(self, texts: Mapping[str, str]) -> Rules:
        """Returns the rules of these texts, the others read from the folder or built in; not active yet."""
        for name in texts:
            if name not in Bundle._fields:
                raise InvalidRequest(name, f"one of the policies {', '.join(Bundle._fields)}")
        _check_engine()
        bundle = Bundle.load(self._folder)._replace(**texts)
        _check_bundle(bundle)  # some mistakes show only when evaluated
        return Rules(bundle)

    def use(self, stored: Mapping[str, str]) -> None:
        """Activates stored texts, which replace those of the folder."""
        with self._changing:
            if stored != self._stored:
                self._rules, self._stored = self.compile_rules(stored), stored

    def reload(self) -> None:
        """Reads the folder again; if the new bundle has an error, raises and leaves the old one active."""
        with self._changing:
            self._rules = self.compile_rules(self._stored)

    def check(self) -> None:
        """Raises unless the active bundle can evaluate every kind of question."""
        _check_bundle(self._rules.bundle)

    @property
    def judges_content(self) -> bool:
        """True if decisions may differ for two writes by one caller to one namespace."""
        reads = self._rules.reads
        return reads is None or not reads.isdisjoint(("key", "value", "index"))

    def authorise(
        self, principal: Principal, operation: Literal["read", "delete"], namespace: Namespace, key: str
    ) -> None:
        """Raises `PermissionDenied` with the policy's reason unless it allows this operation."""
        question = {"operation": operation, "namespace": namespace, "key": key, "context": principal.context}
        if (reason := self._answer(question, _refusal)) is not None:
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
        """The same for a write or an import, whose content the policy can read."""
        content = _content_question(principal, namespace, key, value, index)
        if (reason := self._answer({**content, "operation": operation}, _refusal)) is not None:
            raise PermissionDenied(reason, operation=operation)

    def attributes(
        self, principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
    ) -> bytes:
        """Returns the attributes of a memory, as compact JSON."""
        return self._answer(_content_question(principal, namespace, key, value, index), _attributes)

    def narrow(
        self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None = None
    ) -> ReadScope:
        """Returns where the caller may read; raises `PermissionDenied` if the policy does not define it.

        It also raises for an agent if the policy replaces the prefix of the agent's room: a tool would
        present what it reads there as the content of the room.
        """
        question = _read_question(principal, prefix, msgspec.json.encode(filter or {}))
        scope = self._answer(question, _read_scope)
        if scope is None:
            raise PermissionDenied("the policy does not say where this caller may look", operation="search")
        if principal.agent is not None and scope.prefix[: len(prefix)] != prefix:
            raise PermissionDenied("the policy does not let this agent look there", operation="search")
        return scope

    def _answer(self, question: Question, evaluate: Callable[[regorus.Engine], Answer]) -> Answer:
        try:
            return self._rules.answer(question, evaluate)
        except PolicyError as error:
            place = _PLACE.match(error.message)  # not the whole message, which quotes the input
            file = _FILES.get(evaluate.__name__, "authz.rego")
            log.error("the policy failed at %s", place[1] if place else file)
            raise PolicyFailed("the policy failed to decide; the server's log says where") from None


def _content_question(
    principal: Principal, namespace: Namespace, key: str, value: bytes, index: bytes | None
) -> Question:
    """The question about a memory to store."""
    return {"namespace": namespace, "key": key, "value": value, "index": index or b"{}",
            "context": principal.context}  # fmt: skip


def _read_question(principal: Principal, prefix: Namespace, filter: bytes) -> Question:
    """The question about a search, a list or a reader of events."""
    return {"namespace_prefix": prefix, "filter": filter, "context": principal.context}


def _refusal(engine: regorus.Engine) -> str | None:
    """Why the policy denies a call; None if it allows it."""
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


def _read_scope(engine: regorus.Engine) -> ReadScope | None:
    prefix, owner = value(engine, "filter.namespace_prefix"), value(engine, "filter.owner")
    conditions = value(engine, "filter.attribute_filter", exact=True)
    if prefix is None or conditions is None:
        return None
    if not isinstance(owner, str | None):  # ignoring it would open the rooms of all users
        raise PolicyError("filter.rego: expected `owner` to be a string")
    try:
        return ReadScope(
            Namespace.checked(prefix, "namespace_prefix"),
            Filter.parse(conditions, "attribute_filter", allow_pattern=False),
            owner,
            _authors(engine, "written_by"),
            _authors(engine, "unowned_written_by"),
        )
    except InvalidRequest as error:
        raise PolicyError(f"filter.rego: {error.message}") from None


def _authors(engine: regorus.Engine, rule: str) -> tuple[str | None, ...] | None:
    """The users in a rule of the filter; None if it is undefined."""
    authors = value(engine, f"filter.{rule}", exact=True)
    if authors is None:
        return None
    if not (isinstance(authors, list) and all(isinstance(author, str | None) for author in authors)):
        raise PolicyError(f"filter.rego: expected `{rule}` to be a list of strings and nulls")
    return tuple(authors)


@functools.cache
def _check_engine() -> None:
    """Raises if the Rego engine misreads the built-in policy and lets a stranger write to a namespace."""
    if _check_bundle(Bundle.load()):
        raise PolicyError("the Rego engine lets users write to namespaces of others; install another version")


def _check_bundle(bundle: Bundle) -> bool:
    """Evaluates each kind of question once; returns whether a stranger may write to another user's room."""
    rules, somebody = Rules(bundle), Principal("somebody")
    elsewhere = Namespace(("user", "somebody else"))
    content = _content_question(somebody, elsewhere, "key", b"{}", b"{}")
    rules.answer(content, _attributes)
    rules.answer(_read_question(somebody, elsewhere, b"{}"), _read_scope)
    return rules.answer({**content, "operation": "write"}, _refusal) is None


class Bundle(NamedTuple):
    """The source of `authz.rego`, `attributes.rego` and `filter.rego`."""

    authz: str
    attributes: str
    filter: str

    @classmethod
    def load(cls, folder: Path | None = None) -> Bundle:
        """Reads the files of a folder, with the built-in text for each missing one."""
        if folder is not None and not folder.is_dir():
            raise PolicyError(f"the policy folder {folder} does not exist")
        return cls(*(_text(f"{name}.rego", folder) for name in cls._fields))

    def reads(self) -> frozenset[str] | None:
        """Returns the fields of `input` that the texts read; None if answers may depend on more than those.

        A bare `input` may read any field, and functions in `_IMPURE` return something else each time.
        """
        texts = "\n".join(self)
        fields = frozenset(_INPUT.findall(texts))
        return None if "" in fields or _IMPURE.search(texts) else fields


_INPUT = re.compile(r"\binput\b(?:\.(\w+))?")
_IMPURE = re.compile(r"\b(?:time|rand|uuid|http|net|io|opa|rego(?!\.v1\b))\s*[.\[]|\bprint\b")


def _text(name: str, folder: Path | None) -> str:
    if folder is not None and (folder / name).exists():
        try:
            return (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"policy file {folder / name} cannot be read: {error}") from None
    return (files("alcove.policy") / name).read_text(encoding="utf-8")


class Rules:
    """A bundle and a cache of its answers.

    Rego has no state: if a bundle names every field that it reads and calls no impure function, equal fields
    have equal answers, which are cached. Other bundles are evaluated each time.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.reads = bundle.reads()
        self._answers: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def answer(self, question: Question, evaluate: Callable[[regorus.Engine], Answer]) -> Answer:
        """Evaluates a question, or returns the cached answer; the engine gets only what the bundle reads."""
        if self.reads is None:
            return evaluate(_prepare_engine(self.bundle, _to_json(question)))
        key = (evaluate, *map(question.get, self.reads))
        try:
            return self._answers[key]  # type: ignore[no-any-return]
        except KeyError:
            input = _to_json({name: question[name] for name in self.reads if name in question})
            answer = evaluate(_prepare_engine(self.bundle, input))
        if len(input) <= _MAX_INPUT_BYTES:
            self._answers[key] = answer
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def evaluate_all(self, question: Mapping[str, object]) -> dict[str, object]:
        """Returns the value of every rule for any input; None if it is undefined."""
        engine = _prepare_engine(self.bundle, msgspec.json.encode(question))
        return {rule.partition(".")[2]: value(engine, rule, exact=True) for rule in RULES}


def _to_json(question: Question) -> bytes:
    fields = {name: msgspec.Raw(each) if isinstance(each, bytes) else each for name, each in question.items()}
    return msgspec.json.encode(fields)


def _prepare_engine(bundle: Bundle, input: bytes) -> regorus.Engine:
    """Returns this thread's engine for a bundle, with its input set."""
    engine = _engine(bundle)
    try:
        engine.set_input_json(input.decode())
    except RuntimeError as error:
        raise InvalidRequest("input", f"JSON that the policy engine reads ({_first_lines(error)})") from None
    return engine


def value(engine: regorus.Engine, rule: str, *, exact: bool = False) -> object:
    """Returns a rule's value; None if it is undefined. Unless `exact`, all its numbers are floats."""
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

    An engine may be used, and even be deleted, only on the thread that made it. So each thread has a cache of
    its own, from which it evicts engines itself.
    """
    try:
        return _local.engines[bundle]  # type: ignore[no-any-return]
    except (AttributeError, KeyError):
        engines = _local.__dict__.setdefault("engines", {})
        while len(engines) >= _MAX_ENGINES:
            del engines[next(iter(engines))]
        engine = engines[bundle] = _compile(bundle)
        return engine


def _compile(bundle: Bundle) -> regorus.Engine:
    engine = regorus.Engine()
    for name, text in zip(Bundle._fields, bundle, strict=True):
        try:
            engine.add_policy(f"{name}.rego", text)
        except RuntimeError as error:
            del engine  # on this thread: the error's frames may be deleted on another
            raise PolicyError(_first_lines(error)) from None
    for rule in RULES:
        # Without this, a rule that no file defines is an error instead of undefined.
        package, name = rule.split(".")
        engine.add_policy(f"{name}, if undefined", f"package memories.{package}\n{name} := null if false")
    return engine


def _first_lines(error: RuntimeError) -> str:
    """The engine's message with file and line, without its stack trace."""
    return str(error).split("Stack backtrace:")[0].strip()[:_MAX_ERROR_LENGTH]
