"""Putting, getting, deleting and finding memories."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from alcove.cli.output import Output, plain, shown
from alcove.cli.store import by_offset, namespace, on_store
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Entry, Memory, Result

if TYPE_CHECKING:
    from alcove import Store
    from alcove.core.records import Mode

T = TypeVar("T")


@on_store(make=True)
@click.argument("value", nargs=-1, required=True)
@click.option("--index", multiple=True, metavar="FIELD=TEXT", help="Text to be found by; may be repeated.")
@click.option("--create-only", is_flag=True, help="Only if it is not there.")
def put(
    store: Store, out: Output, namespace: Namespace, key: str, value: Sequence[str], index: Sequence[str],
    ttl: int | None, expected_revision: int | None, idempotency_key: str | None, *, create_only: bool,
) -> None:  # fmt: skip
    """Store a memory.

    \b
    VALUE is a JSON object, NAME=VALUE pairs, or '-' for an object on stdin.
    Examples:
      alcove put user:noop:notes tea text="green tea" cups=2
      alcove put user:noop:notes tea '{"text": "green tea", "cups": 2}' --ttl 1h
      jq .profile me.json | alcove put user:alice:profile me - --as-user alice
    """
    texts = dict(pair(word, "--index") for word in index)
    entry = store.put(namespace, key, given(value, "VALUE"), index=texts or None, ttl_seconds=ttl,
                      expected_revision=expected_revision, create_only=create_only,
                      idempotency_key=idempotency_key, wait_for_index=bool(texts))  # fmt: skip
    out.record(entry, _written(entry))


@on_store()
def touch(store: Store, out: Output, namespace: Namespace, key: str, ttl: int | None) -> None:
    """Change when a memory expires; without --ttl, it never does.

    \b
    It gets no new revision, and no event tells of it.
    Example:  alcove touch user:noop:notes tea --ttl 7d
    """
    entry = store.touch(namespace, key, ttl_seconds=ttl)
    out.record(entry, _written(entry, otherwise=", never expires"))


def _written(entry: Entry, otherwise: str = "") -> str:
    until = f", until {shown(entry.expires_at)}" if entry.expires_at else otherwise
    return f"{plain(entry.key)} in {entry.namespace}: revision {entry.revision}{until}"


@on_store()
def get(store: Store, out: Output, namespace: Namespace, key: str, as_of: str | None) -> None:
    """Show one memory.

    \b
    Exit code 1 if it is not there.
    Examples:
      alcove get user:noop:notes tea
      alcove get user:noop:notes tea --json | jq .value.cups
    """
    memory = store.get(namespace, key, as_of=as_of)
    if memory is None:
        raise NotFound(f"there is no {plain(key)} in {namespace}")
    out.record(memory, _page(memory))


def _page(memory: Memory) -> str:
    author = memory.written_by
    via = "".join(
        f" {how} {plain(who)}" for how, who in (("through", author.client), ("by agent", author.agent)) if who
    )
    lines = [
        f"{plain(memory.key)} in {memory.namespace}",
        f"revision {memory.revision}, {shown(memory.created_at)}, by {plain(author.user or 'nobody')}{via}",
    ]
    if memory.expires_at:
        lines.append(f"expires {shown(memory.expires_at)}")
    lines += [f"found by {plain(field)}: {plain(text)}" for field, text in memory.index.items()]
    return "\n".join([*lines, plain(json.dumps(memory.value, indent=2, ensure_ascii=False), keep="\n")])


@on_store()
def delete(
    store: Store, out: Output, namespace: Namespace, key: str, expected_revision: int | None,
    idempotency_key: str | None,
) -> None:  # fmt: skip
    """Delete one memory.

    \b
    Its history stays as long as the store keeps any; to erase a user for good: alcove wipe.
    Nothing there is not an error.
    Example:  alcove delete user:noop:notes tea
    """
    deletion = store.delete(
        namespace, key, expected_revision=expected_revision, idempotency_key=idempotency_key
    )
    said = f"deleted, revision {deletion.revision}" if deletion.deleted else "nothing was there"
    out.record(deletion, f"{plain(key)} in {namespace}: {said}")


@on_store(make=True)
@click.argument("file", type=click.File("rb"), default="-")
def batch(store: Store, out: Output, file: BinaryIO, idempotency_key: str | None) -> None:
    """Do many operations in one transaction: all of them or none.

    \b
    FILE has one a line, as JSON; '-' is stdin. Each is a put, get, delete or touch:
      {"op": "put", "namespace": "user:noop:notes", "key": "tea", "value": {"cups": 2}}
      {"op": "touch", "namespace": "user:noop:notes", "key": "tea", "ttl_seconds": 3600}
    Example:  alcove batch operations.jsonl
    """
    lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    operations = [_object(line, f"line {number}") for number, line in lines]
    results: list[Result] = []
    cursor: str | None = ""
    while cursor is not None:
        page = store.batch(operations, idempotency_key=idempotency_key, after_cursor=cursor or None)
        results, cursor = [*results, *page], page.after_cursor
    out.table(
        zip(operations, results, strict=True), "op, namespace, key, rev, value", whole={"results": results},
        op=lambda pair: pair[0]["op"], namespace=lambda pair: Namespace.checked(pair[0]["namespace"]),
        key=lambda pair: pair[0]["key"], rev=lambda pair: (pair[1] and pair[1].revision) or "none",
        value=lambda pair: getattr(pair[1], "value", None), empty="no operations",
    )  # fmt: skip


@on_store()
@click.argument("query", required=False)
@click.option("--mode", type=click.Choice(["hybrid", "semantic", "keyword"]), default="hybrid",
              help="How a query ranks.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Show each signal's place and share.")
def search(
    store: Store, out: Output, prefix: Namespace, conditions: Sequence[str], as_of: str | None,
    query: str | None, mode: Mode, limit: int = 100, offset: int = 0, *, explain: bool,
) -> None:  # fmt: skip
    """Find memories, by meaning and words or by filter.

    \b
    Examples:
      alcove search user:alice "what does she like to drink?" --limit 5
      alcove search user:alice "what does she like to drink?" --explain
      alcove search user:alice --filter kind=drink --filter '{"cups": {"gte": 3}}' --json
    """
    if query is None and any(" " in segment for segment in prefix):
        raise click.UsageError(f"this is a namespace; to ask: alcove search NAMESPACE {str(prefix)!r}")
    columns = "namespace, key, rev=revision, written=created_at, value"
    if query is not None:
        columns = (
            "score, namespace, key, why: each signal's place and share=why"
            if explain
            else f"score, {columns}"
        )
    find = partial(store.search, prefix, query=query, mode=mode, explain=explain and query is not None,
                   filter=given(conditions, "--filter") or None, as_of=as_of)  # fmt: skip
    out.table(by_offset(find, limit, offset, most=100), columns, why=_why,
              score=lambda m: "" if m.score is None else f"{m.score:.3f}",
              empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


def _why(memory: Memory) -> str:
    signals = (memory.explain or {}).items()
    return "  ".join(f"{name} #{signal.rank} {signal.score:+.2f}" for name, signal in signals)


@on_store("list")
def list_memories(
    store: Store, out: Output, prefix: Namespace, conditions: Sequence[str], as_of: str | None,
    limit: int = 100, offset: int = 0,
) -> None:  # fmt: skip
    """List memories below a namespace, without their values.

    \b
    Example:  alcove list user:alice --limit 1000
    """
    find = partial(store.list, prefix, filter=given(conditions, "--filter") or None, as_of=as_of)
    out.table(by_offset(find, limit, offset, most=1000),
              "namespace, key, rev=revision, written=created_at, expires",
              expires=lambda e: e.expires_at or "never",
              empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


@on_store()
@click.option("--suffix", type=namespace, default="", help="Only those that end so.")
@click.option("--max-depth", type=click.IntRange(1), help="Cut to so many segments.")
def namespaces(
    store: Store, out: Output, prefix: Namespace, suffix: Namespace, max_depth: int | None,
    limit: int | None = None, offset: int = 0,
) -> None:  # fmt: skip
    """List the namespaces that hold something, one a line.

    \b
    Example:  alcove namespaces user --max-depth 2
    """
    found = store.namespaces(prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset)
    for each in found:
        out.record(each, plain(str(each)))
    if not found and not out.as_json:
        click.echo(f"nothing is held below {prefix or 'the root'}", err=True)


def given(words: Sequence[str], where: str, texts: Container[str] = ()) -> dict[str, Any]:
    """The object that was typed: as JSON, as '-' for JSON on stdin, as NAME=VALUE pairs, or as several.

    What reads as JSON in a pair is JSON, unless its name is one of `texts`. `where` names it in errors.
    """
    content: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.lstrip().startswith("{"):
            content |= _object(sys.stdin.read() if word == "-" else word, where)
        else:
            name, text = pair(word, where)
            content[name] = text if name in texts else _json(text, otherwise=text)
    return content


def pair(word: str, where: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE."""
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise click.BadParameter(
            f"expected a JSON object or NAME=VALUE, not {word!r}", param_hint=f"'{where}'"
        )
    return name, text


def _object(text: str | bytes, where: str) -> dict[str, Any]:
    if not isinstance(found := _json(text, otherwise=None), dict):
        raise click.BadParameter("expected a JSON object", param_hint=f"'{where}'")
    return found


def _json(text: str | bytes, *, otherwise: object) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


COMMANDS = [put, touch, get, delete, batch, search, list_memories, namespaces]
