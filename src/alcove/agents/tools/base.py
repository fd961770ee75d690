"""A tool: what a model is told of it, what it takes and does within one turn's rooms, and what it answers.

A model reads one line of each memory, which nothing that somebody wrote can end or add to. It is
`key: content (about)`. Content is JSON; keys and names are a plain word, or JSON where they are not one. So
what others wrote stays inside its quotes, and what stands outside of them is ours.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Struct, defstruct, structs

from alcove.agents.rooms import Rooms
from alcove.agents.runs import Runs
from alcove.core.cursor import take_page
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Author, Entry, Memory, SearchResults
from alcove.core.validation import to_invalid_request
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.text.terms import ParsedQuery

log = logging.getLogger("alcove")
Format = Literal["openai", "responses", "anthropic", "mcp"]
"""Whose words tools are told of in: OpenAI's chat API or its Responses API, Anthropic's, or MCP's."""
FORMATS: tuple[Format, ...] = get_args(Format)
_SCHEMA_FIELD = {"anthropic": "input_schema", "mcp": "inputSchema"}
"""The providers, and what each calls the schema of a tool's arguments."""
LISTED = 1_000
"""Characters shown of each content in a list or a search."""
READ = 20_000
"""Characters shown of a content that is read by its key."""
UNTOLD = "untold"
"""In the schema of an argument that calls take and models are not told of."""
UNTOLD_NAMES = "untold_names"
"""In the schema of an argument that takes one of a few names: those that models are not told of."""
DOUBTFUL_RELEVANCE = 0.1
"""Below this relevance, the text for the model says that an entry may not fit."""
MAY_NOT_FIT = "may not fit"
MOST_TURNS = 10_000
_PAGE = 1000
NOTHING = "Nothing found."
TOO_LARGE = "Only the best {} are shown: more would be too large for one answer."
SPENT = "you have recalled as much as one turn allows: go on with what you have"
_WORD = re.compile(r"[\w./@+-]+")
_HIDDEN = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, or that a reader does not see."""
_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
"""Letters and a symbol that look like nothing, so that a name with one looks like another's."""
_JOINERS = "\u200c\u200d"
"""Hidden, but Persian, Hindi and emoji are spelled with them."""


class Answer(NamedTuple):
    """What a call gives: a structured result, and the same in words for the model."""

    result: Any
    text: str


class Room(NamedTuple):
    """A room that a tool works in, as the agent acting for the user, with a grant for this room alone."""

    memories: Memories
    who: Principal
    at: Namespace

    def get(self, key: str) -> Memory | None:
        """What is under a key, if anything."""
        return self.memories.get(self.who, self.at, key)

    def put(self, key: str, value: dict[str, Any], index: dict[str, str]) -> Entry:
        """Keeps a value under a key, to be found by the texts of `index`."""
        return self.memories.put(self.who, self.at, key, value, index=index)

    def delete(self, key: str) -> bool:
        """Whether there was anything to delete."""
        return self.memories.delete(self.who, self.at, key).deleted

    def search(self, **asked: Any) -> SearchResults:
        """What `Memories.search` finds in this room; `asked` are its arguments."""
        return self.memories.search(self.who, self.at, **asked, exact=self._alone)

    def everything(self) -> Iterator[Memory]:
        """All memories of this room."""
        return self.memories.scan(self.who, self.at, exact=self._alone)

    def entries(self) -> Iterator[Entry]:
        """All that is in this room, without the values."""
        for offset in count(0, _PAGE):
            page = self.memories.list(self.who, self.at, limit=_PAGE, offset=offset, exact=self._alone)
            yield from page
            if len(page) < _PAGE:
                return

    def size(self) -> int:
        """How many memories are in this room."""
        return self.memories.count(self.who, self.at, exact=self._alone)

    def answers(self, question: ParsedQuery, **asked: Any) -> SearchResults:
        """What `Memories.search_parsed` finds in this room; `asked` are its arguments."""
        return self.memories.search_parsed(self.who, self.at, question, **asked, exact=self._alone)

    @property
    def _alone(self) -> bool:
        return self.at.owner is not None  # a key in a user's room says nothing of what lies below


class RecallBudget:
    """How many memories may still be recalled in the turn of each session; a context begins a new turn.

    It holds numbers only, for the last `MOST_TURNS` sessions of this process.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str, str | None], list[int]] = OrderedDict()
        """What is left of each turn, in a list of its own: who still searches gives back to that."""
        self._mutex = threading.Lock()

    def begin(self, rooms: Rooms, left: int) -> None:
        """Begins a turn in which so many may still be recalled."""
        key = rooms.agent.name, rooms.user, rooms.session_id
        with self._mutex:
            self._turns.pop(key, None)
            self._turns[key] = [left]
            if len(self._turns) > MOST_TURNS:
                self._turns.popitem(last=False)

    def spend(self, rooms: Rooms, limit: int, find: Callable[[int], SearchResults]) -> SearchResults:
        """What `find` finds, told how many it may: at most `limit`, and what is left of the turn's budget."""
        budget = [rooms.agent.memory.long_term.recall_budget]
        with self._mutex:
            turn = self._turns.get((rooms.agent.name, rooms.user, rooms.session_id), budget)
            allowed = min(limit, turn[0])
            turn[0] -= allowed
        found = SearchResults()
        found.degraded = SPENT
        try:
            found = find(allowed) if allowed else found
        finally:
            with self._mutex:
                turn[0] += allowed - len(found)
        return found


@dataclass(frozen=True)
class Turn:
    """Everything a tool works with; bound before the model is asked, so that no argument can change it."""

    memories: Memories
    runs: Runs
    rooms: Rooms
    caller: Principal
    """The user, for whom the agent acts."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    recalls: RecallBudget = field(default_factory=RecallBudget)
    _within: dict[Namespace | Grant, Principal] = field(default_factory=dict)

    def within(self, room: Namespace | Grant) -> Principal:
        """The agent acting for the user, with a grant for one room of this turn and for nothing else."""
        if room not in self._within:
            self._within[room] = self.acting(room if isinstance(room, Grant) else self.rooms.grant(room))
        return self._within[room]

    def acting(self, *grants: Grant) -> Principal:
        """The agent acting for the user, with these grants and nothing else."""
        caller, agent = self.caller, self.rooms.agent.name
        return Principal(caller.user_id, caller.client_id, caller.claims, agent, grants)

    def room(self, at: Namespace | Grant | None) -> Room:
        """One of this turn's rooms; an agent without the room has no tool that asks for it."""
        assert at is not None
        return Room(self.memories, self.within(at), at.namespace if isinstance(at, Grant) else at)


@dataclass(frozen=True)
class Tool:
    """One tool, whoever it is rendered for: a function whose parameters after the turn are its arguments."""

    name: str
    description: str
    run: Callable[..., Answer]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments that take one of a few names, which the spec knows; a default counts if it is among them."""
    before: tuple[tuple[str, Any], ...] = ()
    """Names and types of arguments before those of the function."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Defaults of arguments that the spec decides, by name."""
    reads: bool = False
    """Whether it only reads, and so waits for no commit."""
    scratch: bool = False
    """Whether it works in the scratch room that its argument `namespace` names."""
    choose: str = ""
    """What it is for and what a wrong choice costs, where an agent has other tools that keep things."""

    @functools.cached_property
    def arguments(self) -> type[Struct]:
        """The record of the arguments."""
        return _arguments(self.run, self.before, self.defaults)

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, in one piece and in words that every provider takes."""
        schema = msgspec.json.schema_components([self.arguments])[1]["Arguments"]
        told = {name: _merged(about) for name, about in schema["properties"].items()}
        properties = {name: _plain(about) for name, about in told.items() if UNTOLD not in about}
        required = [*schema["required"]]
        for name, names in self.choices.items():
            properties[name]["enum"] = [*names]
            if properties[name].get("default", names[0]) not in names:
                del properties[name]["default"]
                required.append(name)
        return {"type": "object", "properties": properties, "required": required}

    def called(self, turn: Turn, given: Mapping[str, Any]) -> Answer:
        """Runs the tool with those of the arguments that it declares."""
        record = self.arguments
        if dropped := sorted(given.keys() - {*record.__struct_fields__}):
            names = ", ".join(dropped)[:200]
            log.info("%s: dropped arguments that it does not declare: %s", self.name, names)
        try:
            arguments = structs.asdict(convert({**given}, record))
        except msgspec.ValidationError as error:
            raise to_invalid_request(error, record, "arguments") from None
        for name, allowed in self.choices.items():
            if arguments[name] not in allowed:
                raise InvalidRequest(name, f"one of {', '.join(allowed)}")
        return self.run(turn, **arguments)


@functools.cache
def _arguments(
    run: Callable[..., Answer], before: tuple[tuple[str, Any], ...], defaults: tuple[tuple[str, str], ...]
) -> type[Struct]:
    """The record of a function's parameters after the turn; agents with the same defaults share it."""
    hints, decided = get_type_hints(run, include_extras=True), dict(defaults)
    fields: list[Any] = [*before]
    for parameter in [*signature(run).parameters.values()][1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            told = (parameter.name, hints[parameter.name])
            default = decided.get(parameter.name, parameter.default)
            fields.append(told if default is parameter.empty else (*told, default))
    return defstruct("Arguments", fields)


def rendered(tool: Tool, format: str) -> dict[str, Any]:
    """A tool as a provider wants to be told of it."""
    if format not in FORMATS:
        raise InvalidRequest("format", f"one of {', '.join(FORMATS)}")
    schema = _SCHEMA_FIELD.get(format, "parameters")
    about = {"name": tool.name, "description": tool.description, schema: tool.parameters()}
    if format == "openai":
        return {"type": "function", "function": about}
    return {"type": "function", **about, "strict": False} if format == "responses" else about


def _merged(about: Mapping[str, Any]) -> dict[str, Any]:
    """One argument in one piece, also where it may be null."""
    alternatives = [each for each in about.get("anyOf", ()) if each != {"type": "null"}]
    return {**about, **(alternatives[0] if alternatives else {})}


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """One argument without what some provider refuses: bounds, which a call checks, and null for absence.

    A default is told where it is a name; how many there are by default shows.
    """
    told = dict(about)
    if "enum" in told:
        told["type"] = "string"
        told["enum"] = [each for each in told["enum"] if each not in told.get(UNTOLD_NAMES, ())]
    if not isinstance(told.get("default"), str):
        told.pop("default", None)
    return {name: told[name] for name in ("type", "description", "enum", "items", "default") if name in told}


# What a tool answers


def several(
    found: Sequence[Memory],
    reader: str | None = None,
    next_offset: int | None = None,
) -> Answer:
    """Some memories, a line each; `reader` is the tool that shows a long content whole."""
    told = page(found, next_offset)
    return Answer(told, listed([line(each, reader=reader) for each in found], next_offset))


def search_answer(
    found: SearchResults,
    show: Callable[[Memory], dict[str, Any]] | None = None,
    describe: Callable[[Memory], str] | None = None,
    *,
    reader: str | None = None,
) -> Answer:
    """What a search found, a line each; `show` and `describe` make an item and a line of a memory.

    `reader` is the tool that shows a long content whole.
    """
    show, describe = show or shown, describe or (lambda each: line(each, *doubts(each), reader=reader))
    cut = [] if found.next_offset is None else [TOO_LARGE.format(len(found))]
    result: dict[str, Any] = {"items": [show(each) for each in found]}
    if degraded := [*filter(None, (found.degraded, *cut))]:
        result["degraded"] = "; ".join(degraded)
    text = SPENT if found.degraded == SPENT else "\n".join([listed(map(describe, found)), *cut])
    return Answer(result, text)


def some(found: Iterable[Memory], limit: int) -> tuple[list[Memory], bool]:
    """As many memories as one answer may have; whether there are more."""
    return take_page(found, limit, lambda memory: len(msgspec.json.encode(memory.value)))


def page(found: Sequence[Memory], next_offset: int | None) -> dict[str, Any]:
    """Some memories, and where the list goes on if it does."""
    items = [shown(each) for each in found]
    return {"items": items} if next_offset is None else {"items": items, "next_offset": next_offset}


def shown(memory: Memory) -> dict[str, Any]:
    """What a tool answers of a memory: no namespace, no policy attributes."""
    return {
        **memory.value,
        "key": memory.key,
        "version": memory.revision,
        "written_at": memory.created_at,
        "written_by": {"user": memory.written_by.user, "agent": memory.written_by.agent},
        **scored(memory),
    }


def scored(memory: Memory) -> dict[str, float]:
    """How well a memory fits, if it was searched for."""
    told = {"score": memory.score, "relevance": memory.relevance}
    return {name: round(each, 4) for name, each in told.items() if each is not None}


def doubts(memory: Memory) -> tuple[str, ...]:
    """What a line says of a hit that is hardly relevant, or that a search could not rank."""
    is_doubtful = memory.relevance is None or memory.relevance < DOUBTFUL_RELEVANCE
    return (MAY_NOT_FIT,) if is_doubtful else ()


def listed(lines: Iterable[str], next_offset: int | None = None) -> str:
    """Lines of memories as a list; `next_offset` where it goes on."""
    shown = [f"- {line}" for line in lines] or [NOTHING]
    if next_offset is not None:
        shown.append(f"There is more: call this again with offset {next_offset}.")
    return "\n".join(shown)


def line(
    memory: Memory, *more: str, field: str = "content", most: int = LISTED, reader: str | None = None
) -> str:
    """A memory in one line: key, content, `more` about it, who wrote it and when.

    `reader` is the tool that shows all of a content that is cut.
    """
    about = [*more, *_author(memory.written_by), str(memory.created_at.date())]
    content = quoted(memory.value.get(field, memory.value), most, reader)
    return f"{name(memory.key)}: {content} ({', '.join(about)})"


def quoted(value: object, most: int = LISTED, reader: str | None = None) -> str:
    """A value as JSON; of a long one the beginning, as a JSON string, and a note that says so."""
    text = value if isinstance(value, str) else _json(value)
    if len(text) <= most:
        return _json(value)
    whole = f"; {reader} shows all" if reader else ""
    return f"{_json(text[:most])} [the first {most} of {len(text)} characters{whole}]"


def name(text: str) -> str:
    """A key or a name: as it is where it is a plain word, otherwise as JSON."""
    return text if _WORD.fullmatch(text) and not _BLANK.search(text) else _json(text)


def _author(author: Author) -> Iterator[str]:
    """Who wrote it, as far as that is known: the agent, and the user for whom it did."""
    if author.agent and author.user:
        yield f"by {name(author.agent)} for {name(author.user)}"
    elif author.user:
        yield f"by user {name(author.user)}"
    elif author.agent:
        yield f"by agent {name(author.agent)}"


def _json(value: object) -> str:
    """JSON in one line, with hidden characters as escapes."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() and not _BLANK.search(text) else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in _JOINERS or not (unicodedata.category(char) in _HIDDEN or _BLANK.match(char)):
        return char
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
