"""Putting, getting, deleting and finding memories."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from alcove.cli.output import Output, plain, shown
from alcove.cli.store import NamespaceType, namespace_argument, on_store, prefix_argument
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Memory

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove

T = TypeVar("T")


@click.command()
@on_store(make=True)
@namespace_argument
@click.argument("key")
@click.argument("value", nargs=-1, required=True)
@click.option("--index", multiple=True, metavar="FIELD=TEXT", help="Text to be found by; may be repeated.")
@click.option("--ttl", type=int, metavar="SECONDS", help="Forget it after so many seconds.")
@click.option("--expected-revision", type=int, help="Only if this is its revision; 0 if it is not there.")
@click.option("--create-only", is_flag=True, help="Only if it is not there.")
@click.option("--idempotency-key", help="A repetition with the same key is done once.")
def put(
    store: Alcove, out: Output, namespace: Namespace, key: str, value: Sequence[str], index: Sequence[str],
    ttl: int | None, **conditions: Any,
) -> None:  # fmt: skip
    """Store a memory.

    \b
    VALUE is a JSON object, NAME=VALUE pairs, or '-' for an object on stdin.
    Examples:
      alcove put user:noop:notes tea text="green tea" cups=2
      alcove put user:noop:notes tea '{"text": "green tea", "cups": 2}' --ttl 3600
      jq .profile me.json | alcove put user:alice:profile me - --as-user alice
    """
    texts = dict(pair(word, "--index") for word in index)
    content = given(value, "VALUE")
    entry = store.put(namespace, key, content, index=texts or None, ttl_seconds=ttl,
                      wait_for_index=bool(texts), **conditions)  # fmt: skip
    until = f", until {shown(entry.expires_at)}" if entry.expires_at else ""
    out.record(entry, f"{plain(key)} in {namespace}: revision {entry.revision}{until}")


@click.command()
@on_store()
@namespace_argument
@click.argument("key")
@click.option("--as-of", metavar="TIME", help="As it was then, such as 2026-01-31T12:00:00Z.")
def get(store: Alcove, out: Output, namespace: Namespace, key: str, as_of: str | None) -> None:
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


@click.command()
@on_store()
@namespace_argument
@click.argument("key")
@click.option("--expected-revision", type=int, help="Only if this is its revision.")
@click.option("--idempotency-key", help="A repetition with the same key is done once.")
def delete(store: Alcove, out: Output, namespace: Namespace, key: str, **conditions: Any) -> None:
    """Delete one memory.

    \b
    Its history stays as long as the store keeps any; to erase a user for good: alcove wipe.
    Nothing there is not an error.
    Example:  alcove delete user:noop:notes tea
    """
    deletion = store.delete(namespace, key, **conditions)
    said = f"deleted, revision {deletion.revision}" if deletion.deleted else "nothing was there"
    out.record(deletion, f"{plain(key)} in {namespace}: {said}")


def finding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command what `search` and `list` can be asked."""
    for option in (
        click.option("--as-of", metavar="TIME", help="As it was then, such as 2026-01-31T12:00:00Z."),
        click.option("--offset", type=click.IntRange(0), default=0, help="Leave out the first so many."),
        click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most."),
        click.option("--filter", "conditions", multiple=True, metavar="FIELD=VALUE|JSON",
                     help="What must hold; may be repeated."),
        prefix_argument,
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@on_store()
@finding
@click.argument("query", required=False)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "semantic", "keyword"]),
    default="hybrid",
    help="How a query ranks.",
)
@click.option("--explain", is_flag=True, help="Show each signal's place and share.")
def search(
    store: Alcove, out: Output, prefix: Namespace, query: str | None, mode: str, *, explain: bool,
    **asked: Any,
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
    columns, cells = ["namespace", "key", "rev", "written", "value"], _cells
    find: Callable[..., Sequence[Memory]] = store.search
    if query is not None:
        columns, cells = ["score", *columns], _scored
        find = partial(_asked, store, query=query, mode=mode, explain=explain)
        if explain:
            columns, cells = ["score", "namespace", "key", "why: each signal's place and share"], _reasons
    out.table(_found(find, 100, prefix, **asked), columns, cells,
              empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


def _asked(store: Alcove, prefix: Namespace, **asked: Any) -> Sequence[Memory]:
    found = store.search(prefix, **asked)
    if found.degraded:
        click.echo(f"alcove: {found.degraded}", err=True)
    return found


def _cells(memory: Memory) -> list[object]:
    return [memory.namespace, memory.key, memory.revision, memory.created_at, memory.value]


def _scored(memory: Memory) -> list[object]:
    return [_score(memory), *_cells(memory)]


def _reasons(memory: Memory) -> list[object]:
    signals = (memory.explain or {}).items()
    why = "  ".join(f"{name} #{signal.rank} {signal.score:+.2f}" for name, signal in signals)
    return [_score(memory), memory.namespace, memory.key, why]


def _score(memory: Memory) -> str:
    return "" if memory.score is None else f"{memory.score:.3f}"


@click.command(name="list")
@on_store()
@finding
def list_memories(store: Alcove, out: Output, prefix: Namespace, **asked: Any) -> None:
    """List memories below a namespace, without their values.

    \b
    Example:  alcove list user:alice --limit 1000
    """
    out.table(
        _found(store.list, 1000, prefix, **asked),
        ["namespace", "key", "rev", "written", "expires"],
        lambda e: [e.namespace, e.key, e.revision, e.created_at, e.expires_at or "never"],
        empty=f"nothing found below {prefix or 'the root'}",
    )


def _found(
    find: Callable[..., Sequence[T]], most: int, prefix: Namespace, conditions: Sequence[str],
    limit: int, offset: int, as_of: str | None,
) -> Iterator[T]:  # fmt: skip
    """As many as are wanted, asked for page by page."""
    filter = given(conditions, "--filter") if conditions else None
    while limit > 0:
        page = find(prefix, filter=filter, limit=min(limit, most), offset=offset, as_of=as_of)
        yield from page
        if len(page) < min(limit, most) and not getattr(page, "next_offset", None):
            return
        limit, offset = limit - len(page), offset + len(page)


@click.command()
@on_store()
@prefix_argument
@click.option("--suffix", type=NamespaceType(), default="", help="Only those that end so.")
@click.option("--max-depth", type=click.IntRange(1), help="Cut to so many segments.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Leave out the first so many.")
def namespaces(store: Alcove, out: Output, prefix: Namespace, suffix: Namespace, **bounds: Any) -> None:
    """List the namespaces that hold something, one a line.

    \b
    Example:  alcove namespaces user --max-depth 2
    """
    found = store.namespaces(prefix, suffix=suffix, **bounds)
    for each in found:
        out.record(each, plain(str(each)))
    if not found and not out.as_json:
        click.echo(f"nothing is held below {prefix or 'the root'}", err=True)


def given(words: Sequence[str], where: str) -> dict[str, Any]:
    """The object that was typed: as JSON, as '-' for JSON on stdin, as NAME=VALUE pairs, or as several."""
    content: dict[str, Any] = {}
    for word in words:
        if word != "-" and not word.lstrip().startswith("{"):
            name, text = pair(word, where)
            content[name] = _json(text, otherwise=text)
            continue
        found = _json(sys.stdin.read() if word == "-" else word, otherwise=None)
        if not isinstance(found, dict):
            raise click.BadParameter("expected a JSON object", param_hint=f"'{where}'")
        content |= found
    return content


def pair(word: str, where: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE."""
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise click.BadParameter(
            f"expected a JSON object or NAME=VALUE, not {word!r}", param_hint=f"'{where}'"
        )
    return name, text


def _json(text: str, *, otherwise: object) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


COMMANDS = [put, get, delete, search, list_memories, namespaces]
