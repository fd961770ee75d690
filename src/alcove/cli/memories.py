"""Commands for memories: storing, reading and finding them, their events and history, the audit log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from alcove.cli.command import (
    all_pages,
    by_cursor,
    by_offset,
    command,
    namespace,
    parse_json_object,
    parse_object,
    parse_pair,
)
from alcove.cli.output import as_json, escape, format_cell, show, show_table, to_json
from alcove.core.clock import parse_moment
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import KINDS, Entry, Event, Memory, RankingSignal, Version

if TYPE_CHECKING:
    from alcove.client.store import Store

_MAX_EVENTS = 200
_MISSING = object()
_SIDES = {"before": ("-", "red"), "after": ("+", "green")}
"""The two sides of a change, with the sign and the colour of each."""


@command(creates=True, takes="ttl_seconds, expected_revision, idempotency_key")
@click.argument("value", nargs=-1, required=True)
@click.option("--index", multiple=True, metavar="PATH|FIELD=TEXT",
              help="Index the text at this path, or this text; repeatable.")  # fmt: skip
@click.option("--index-all", is_flag=True, help="Index every text of the value.")
@click.option("--create-only", is_flag=True, help="Only if there is no memory with this key.")
def put(
    store: Store, namespace: Namespace, key: str, value: Sequence[str], index: Sequence[str], *,
    index_all: bool, **options: Any,
) -> None:  # fmt: skip
    """Store a memory.

    \b
    VALUE is a JSON object, NAME=VALUE pairs, or '-' to read an object from stdin. Queries find a memory by
    the texts that --index or --index-all name; these are stored in plain text. Without them, you find it
    only by key or filter.
    Examples:
      alcove put user:noop:notes tea text="green tea" cups=2 --index-all
      alcove put user:noop:notes tea '{"text": "green tea", "cups": 2}' --ttl 1h
      jq .profile me.json | alcove put user:alice:profile me - --as-user alice
    """
    paths = [word for word in index if "=" not in word]
    if index_all + bool(paths) + (len(paths) < len(index)) > 1:
        raise click.UsageError("use one of --index-all, --index PATH and --index FIELD=TEXT")
    texts = index_all or paths or dict(parse_pair(word, "--index") for word in index) or None
    content = parse_object(value, "VALUE")
    entry = store.put(namespace, key, content, index=texts, wait_for_index=bool(texts), **options)
    _show_entry(entry)
    if entry.indexed is False:
        click.echo("alcove: no query finds it by meaning yet: it has no text there, or waits to be indexed "
                   "(`alcove index` shows the progress)", err=True)  # fmt: skip


@command()
def touch(store: Store, namespace: Namespace, key: str, ttl_seconds: int | None) -> None:
    """Change when a memory expires; without --ttl, it never does.

    \b
    This creates no revision and no event.
    Example:  alcove touch user:noop:notes tea --ttl 7d
    """
    _show_entry(store.touch(namespace, key, ttl_seconds=ttl_seconds), otherwise=", never expires")


def _show_entry(entry: Entry, otherwise: str = "") -> None:
    until = f", until {format_cell(entry.expires_at)}" if entry.expires_at else otherwise
    show(entry, f"{escape(entry.key)} in {entry.namespace}: revision {entry.revision}{until}")


@command()
def get(store: Store, namespace: Namespace, key: str, as_of: str | None) -> None:
    """Show one memory.

    \b
    Exit code 1 if there is none.
    Examples:
      alcove get user:noop:notes tea
      alcove get user:noop:notes tea --json | jq .value.cups
    """
    memory = store.get(namespace, key, as_of=as_of)
    if memory is None:
        raise NotFound(f"there is no memory {escape(key)} in {namespace}")
    author = memory.written_by
    via = (("through", author.client), ("by agent", author.agent))
    by = escape(author.user or "nobody") + "".join(f" {word} {escape(name)}" for word, name in via if name)
    show(
        memory,
        f"{escape(memory.key)} in {memory.namespace}",
        f"revision {memory.revision}, {format_cell(memory.created_at)}, by {by}",
        *([f"expires {format_cell(memory.expires_at)}"] if memory.expires_at else []),
        *(f"found by {escape(field)}: {escape(text)}" for field, text in memory.index.items()),
        escape(json.dumps(memory.value, indent=2, ensure_ascii=False), keep="\n"),
    )


@command(takes="expected_revision, idempotency_key")
def delete(store: Store, namespace: Namespace, key: str, **options: Any) -> None:
    """Delete one memory.

    \b
    Its history stays until its retention ends; to erase a user for good, use `alcove wipe`.
    Deleting a memory that does not exist is no error.
    Example:  alcove delete user:noop:notes tea
    """
    deletion = store.delete(namespace, key, **options)
    outcome = f"deleted, revision {deletion.revision}" if deletion.deleted else "nothing was there"
    show(deletion, f"{escape(key)} in {namespace}: {outcome}")


@command(creates=True)
@click.argument("file", type=click.File("rb"), default="-")
def batch(store: Store, file: BinaryIO, idempotency_key: str | None) -> None:
    """Run many operations in one transaction: all of them or none.

    \b
    FILE has one operation per line, as JSON; '-' is stdin. Each is a put, get, delete or touch:
      {"op": "put", "namespace": "user:noop:notes", "key": "tea", "value": {"cups": 2}}
      {"op": "touch", "namespace": "user:noop:notes", "key": "tea", "ttl_seconds": 3600}
    Example:  alcove batch operations.jsonl
    """
    lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    operations = [parse_json_object(line, f"line {number}") for number, line in lines]
    results = [*all_pages(store.batch, operations, idempotency_key=idempotency_key)]
    show_table(
        zip(operations, results, strict=True), "op, namespace, key, rev, value", json={"results": results},
        op=lambda pair: pair[0]["op"], namespace=lambda pair: Namespace.checked(pair[0]["namespace"]),
        key=lambda pair: pair[0]["key"], rev=lambda pair: (pair[1] and pair[1].revision) or "none",
        value=lambda pair: getattr(pair[1], "value", None), empty="no operations",
    )  # fmt: skip


@command(takes="filter, as_of, limit, offset, unindexed")
@click.option("--mode", type=click.Choice(["hybrid", "semantic", "keyword"]), default="hybrid",
              help="Rank by meaning and words, by meaning, or by words.")  # fmt: skip
@click.option("--min-relevance", type=click.FloatRange(0, 1), metavar="0…1",
              help="Leave out hits that are less relevant to the query.")  # fmt: skip
@click.option("--min-score", type=click.FloatRange(0, 1), hidden=True, help="Older name of --min-relevance.")
@click.option("--explain", is_flag=True, help="Show each signal's rank and share of the score.")
def search(
    store: Store, prefix: Namespace, filter: Sequence[str], query: str | None = None, *, explain: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Find memories by meaning, words or filters.

    \b
    Examples:
      alcove search user:alice "what does she like to drink?" --limit 5
      alcove search user:alice "what does she like to drink?" --explain
      alcove search user:alice --filter kind=drink --filter '{"cups": {"gte": 3}}' --json
    """
    if query is None and any(" " in segment for segment in prefix):
        raise click.UsageError(f"this is a namespace; to ask: alcove search NAMESPACE {str(prefix)!r}")
    explain = explain and query is not None
    columns = "" if query is None else "relevance:.3f, score:.3f, "
    columns += "namespace, key, "
    columns += "signals=why" if explain else "rev=revision, written=created_at, value"
    options |= {"query": query, "filter": parse_object(filter, "--filter") or None, "explain": explain}
    hits = by_offset(store.search, prefix, page_size=100, **options)
    show_table(hits, columns, why=_explanation, empty=_nothing_below(prefix))


def _explanation(memory: Memory) -> str:
    def rules(signal: RankingSignal) -> str:
        numbers = ", ".join(f"{rule} {number:.2f}" for rule, number in signal.rules.items())
        return f" ({numbers})" if numbers else ""

    signals = (memory.explain or {}).items()
    return "  ".join(f"{name} #{signal.rank} {signal.score:+.2f}{rules(signal)}" for name, signal in signals)


def _nothing_below(prefix: Namespace) -> str:
    return f"nothing found below {prefix or 'the root'}"


@command("list", takes="filter, as_of, limit, offset, unindexed")
def list_memories(store: Store, prefix: Namespace, filter: Sequence[str], **options: Any) -> None:
    """List memories below a namespace, without their values.

    \b
    Example:  alcove list user:alice --limit 1000
    """
    options["filter"] = parse_object(filter, "--filter") or None
    entries = by_offset(store.list, prefix, page_size=1000, **options)
    show_table(entries, "namespace, key, rev=revision, written=created_at, expires",
               expires=lambda entry: entry.expires_at or "never", empty=_nothing_below(prefix))  # fmt: skip


@command(takes="limit, offset")
@click.option("--suffix", type=namespace, default="", show_default=False, help="Only with this ending.")
@click.option("--max-depth", type=click.IntRange(1), help="Cut namespaces to this many segments.")
def namespaces(store: Store, prefix: Namespace, limit: int | None = None, **options: Any) -> None:
    """List the namespaces that have memories, one per line.

    \b
    Example:  alcove namespaces user --max-depth 2
    """
    names = store.namespaces(prefix, limit=limit, **options)
    for each in names:
        show(each, escape(str(each)))
    if not names and not as_json():
        click.echo(_nothing_below(prefix), err=True)


@command()
def tree(store: Store, prefix: Namespace, limit: int = 100) -> None:
    """Show the namespaces right below one, with counts.

    \b
    Example:  alcove tree user:alice
    """
    show_table(store.tree(prefix, limit=limit), "namespace, here, with all below it=memories",
               empty=_nothing_below(prefix))  # fmt: skip


@command()
def newest(store: Store, prefix: Namespace, limit: int = 20) -> None:
    """Show the memories written last.

    \b
    Example:  alcove newest user:alice --limit 5
    """
    show_table(store.newest(prefix, limit=limit), "written=created_at, namespace, key, value",
               empty=_nothing_below(prefix))  # fmt: skip


@command()
@click.option("--days", type=click.IntRange(1, 366), default=30, help="Count this many days.")
def activity(store: Store, prefix: Namespace, *, days: int) -> None:
    """Count the events of each day, by kind.

    \b
    Example:  alcove activity user:alice --days 7
    """
    result = store.activity(prefix, days=days)
    show_table(result.events, "day, kind, count", json=result, empty=f"nothing happened in {days} days")


@command("map")
def map_memories(store: Store, prefix: Namespace, limit: int = 1000) -> None:
    """Place memories on a plane by meaning.

    \b
    Similar memories are close together.
    Example:  alcove map user:alice --json
    """
    result = store.map(prefix, limit=limit)
    columns = "x:.2f, y:.2f, namespace, key, text"
    show_table(result.points, columns, json=result, empty="nothing is indexed here yet")


@command()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS),
              help="Only events of this kind; repeatable.")  # fmt: skip
@click.option("--after", metavar="TIME", help="Only events after this time, such as 2026-01-31T12:00:00Z.")
@click.option("--before", metavar="TIME", help="Only events before this time.")
@click.option("--after-cursor", metavar="CURSOR", help="Continue after this event.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new events until interrupted.")
def events(store: Store, prefix: Namespace, limit: int = 50, *, follow: bool, **options: Any) -> None:
    """List what happened below a namespace, oldest first.

    \b
    With --follow it starts now, or after a cursor.
    Examples:
      alcove events user:alice --kind delete --kind expired
      alcove events --follow --json | jq -r '.kind + " " + .key'
    """
    options["kinds"] = options["kinds"] or None
    if follow:
        if options.pop("after") or options.pop("before"):
            raise click.UsageError("--follow starts now, or with --after-cursor")
        follow_events(store.follow(prefix, **options))
        return
    columns = "when=occurred_at, kind, namespace, key, rev=revision, by=written_by.user, value"
    empty = f"nothing happened below {prefix or 'the root'}"
    show_table(_past_events(store, prefix, limit, **options), columns, empty=empty)


def _past_events(
    store: Store, prefix: Namespace, limit: int, after_cursor: str | None, **options: Any
) -> Iterator[Event]:
    """Up to `limit` events; at a terminal, prints the cursor to continue from."""
    cursor = after_cursor
    while limit > 0:
        page = store.events(prefix, limit=min(limit, _MAX_EVENTS), after_cursor=cursor, **options)
        if page.truncated_before and cursor == after_cursor:
            click.echo(f"events before {format_cell(page.truncated_before)} are no longer stored", err=True)
        yield from page.events
        if not page.more:
            return
        limit, cursor = limit - len(page.events), page.after_cursor
    if not as_json():
        click.echo(f"there is more: --after-cursor {cursor}", err=True)


def follow_events(events: Iterator[Event]) -> None:
    """Prints each event as it arrives, until interrupted."""
    with suppress(KeyboardInterrupt):
        for event in events:
            words = [event.occurred_at, f"{event.kind:<7}", event.namespace, event.key, event.value]
            show(event, "  ".join(map(format_cell, words)))
            sys.stdout.flush()


@command()
def history(store: Store, namespace: Namespace, key: str) -> None:
    """Show every stored version of one memory.

    \b
    Example:  alcove history user:noop:notes tea
    """
    columns = "rev=revision, kind, when=created_at, by=written_by.user, value"
    show_table(_versions(store, namespace, key), columns, empty="")


def _versions(store: Store, namespace: Namespace, key: str) -> Iterator[Version]:
    """Every stored version, newest first."""
    version = None
    for version in all_pages(store.history, namespace, key):
        yield version
    if version is None:
        raise NotFound(f"there is no memory {escape(key)} in {namespace}, and no history of it")


@command()
@click.argument("before", required=False)
@click.argument("after", required=False)
def diff(store: Store, namespace: Namespace, key: str, before: str | None, after: str | None) -> None:
    """Show what changed in one memory.

    \b
    In its last write, or between two revisions or times.
    Examples:
      alcove diff user:noop:notes tea
      alcove diff user:noop:notes tea 1 3
      alcove diff user:noop:notes tea 2026-01-31T12:00:00Z
    """
    versions = partial(_versions, store, namespace, key)
    newer = _find_version(versions(), after) if after else next(versions())
    earlier = (each for each in versions() if each.revision < newer.revision)
    older = _find_version(versions(), before) if before else next(earlier, None)
    records = list[dict[str, Any]]()
    lines = [f"{escape(key)} in {namespace}: {_title(older)} → {_title(newer)}"]
    for path, *values in changes((older and older.value) or {}, newer.value or {}):
        sides = {side: value for side, value in zip(_SIDES, values, strict=True) if value is not _MISSING}
        records.append({"path": path, **sides})
        for side, value in sides.items():
            sign, colour = _SIDES[side]
            lines.append(click.style(f"{sign} {escape(path)}: {escape(to_json(value))}", fg=colour))
    show({"from": older and older.revision, "to": newer.revision, "changes": records}, *lines)
    if not records and not as_json():
        click.echo("no difference", err=True)


def _find_version(versions: Iterator[Version], word: str) -> Version:
    """The version with this revision, or the newest one that is not later than this time."""
    moment = None if word.isdigit() else parse_moment(word, "a revision or a time")
    for each in versions:
        if each.revision == int(word) if moment is None else parse_moment(each.created_at, "") <= moment:  # type: ignore[operator]
            return each
    raise NotFound(f"no version {word} is stored; the oldest is {_title(each)}")


def _title(version: Version | None) -> str:
    if version is None:
        return "nothing"
    suffix = "" if version.value is not None else f", {version.kind}"
    return f"revision {version.revision} ({format_cell(version.created_at)}{suffix})"


def changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences of two values: the path of each, and the value before and after."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            below = f"{path}.{name}" if path else name
            yield from changes(old.get(name, _MISSING), new.get(name, _MISSING), below)
    elif isinstance(old, list) and isinstance(new, list):
        for n, (before, after) in enumerate(zip_longest(old, new, fillvalue=_MISSING)):
            yield from changes(before, after, f"{path}[{n}]")
    elif type(old) is not type(new) or old != new:
        yield path or "value", old, new


@command()
@click.option("--user", help="Only what this user did, or what was done to them.")
@click.option("--action", help="Only this action, such as user.wipe.")
def audit(store: Store, limit: int, **options: Any) -> None:
    """Show the audit log, newest first: who did what.

    \b
    The user that something was done to appears under a pseudonym, always the same for the same user.
    So does an actor who has been wiped.
    Examples:
      alcove audit --user alice
      alcove audit --action policies.put --json
    """
    entries = by_cursor(store.admin.audit, field="entries", limit=limit, **options)
    show_table(entries, "when=at, actor, action, subject, details", empty="the audit log has no such entry")


COMMANDS = [put, touch, get, delete, batch, search, list_memories, namespaces]
OVERVIEW = [tree, newest, activity, map_memories]
TIMELINE = [events, history, diff, audit]
