"""Putting, getting, deleting and finding memories, and what happened to them: events, history, audit log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from alcove.cli.output import as_json, compact, plain, show, show_table, shown
from alcove.cli.store import by_cursor, by_offset, command, given, namespace, object_of, pair
from alcove.core.clock import parse_moment
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import (
    KINDS,
    Entry,
    Event,
    IndexSpec,
    Memory,
    OperationResult,
    RankingSignal,
    Version,
)

if TYPE_CHECKING:
    from alcove.client.store import Store

_PAGE = 200
_MISSING = object()
_SIDES = {"before": ("-", "red"), "after": ("+", "green")}
"""The two sides of a change, with the sign and the colour of each."""
_UNINDEXED = click.option("--unindexed", is_flag=True, help="Only what has no index text: no query finds it.")


@command(make=True, takes="ttl_seconds, expected_revision, idempotency_key")
@click.argument("value", nargs=-1, required=True)
@click.option(
    "--index",
    multiple=True,
    metavar="PATH|FIELD=TEXT",
    help="Found by the value's text at this path, or by this text; may be repeated.",
)
@click.option("--index-all", is_flag=True, help="Found by every text of the value.")  # fmt: skip
@click.option("--create-only", is_flag=True, help="Only if it is not there.")
def put(
    store: Store, namespace: Namespace, key: str, value: Sequence[str], index: Sequence[str], *,
    index_all: bool, **how: Any,
) -> None:  # fmt: skip
    """Store a memory.

    \b
    VALUE is a JSON object, NAME=VALUE pairs, or '-' for an object on stdin. A query finds it by what
    --index or --index-all names, which is kept in plain text; without, only its key and filters do.
    Examples:
      alcove put user:noop:notes tea text="green tea" cups=2 --index-all
      alcove put user:noop:notes tea '{"text": "green tea", "cups": 2}' --ttl 1h
      jq .profile me.json | alcove put user:alice:profile me - --as-user alice
    """
    by = _indexed(index, every=index_all)
    how |= {"index": by, "wait_for_index": bool(by)}
    entry = store.put(namespace, key, given(value, "VALUE"), **how)
    show(entry, _written(entry))
    if entry.indexed is False:
        told = "its vectors are still to come (`alcove index` shows how far it is), or it has no text there"
        click.echo(f"alcove: no query finds it by meaning yet: {told}", err=True)


def _indexed(words: Sequence[str], *, every: bool) -> IndexSpec | None:
    """By what a memory is to be found: every text of its value, texts at some paths, or other texts."""
    paths = [word for word in words if "=" not in word]
    if every + bool(paths) + (len(paths) < len(words)) > 1:
        raise click.UsageError("one of --index-all, --index PATH and --index FIELD=TEXT")
    return every or paths or dict(pair(word, "--index") for word in words) or None


@command()
def touch(store: Store, namespace: Namespace, key: str, ttl_seconds: int | None) -> None:
    """Change when a memory expires; without --ttl, it never does.

    \b
    It gets no new revision, and no event tells of it.
    Example:  alcove touch user:noop:notes tea --ttl 7d
    """
    entry = store.touch(namespace, key, ttl_seconds=ttl_seconds)
    show(entry, _written(entry, otherwise=", never expires"))


def _written(entry: Entry, otherwise: str = "") -> str:
    until = f", until {shown(entry.expires_at)}" if entry.expires_at else otherwise
    return f"{plain(entry.key)} in {entry.namespace}: revision {entry.revision}{until}"


@command()
def get(store: Store, namespace: Namespace, key: str, as_of: str | None) -> None:
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
    show(memory, *_page(memory))


def _page(memory: Memory) -> Iterator[str]:
    author = memory.written_by
    via = (("through", author.client), ("by agent", author.agent))
    by = plain(author.user or "nobody") + "".join(f" {how} {plain(who)}" for how, who in via if who)
    yield f"{plain(memory.key)} in {memory.namespace}"
    yield f"revision {memory.revision}, {shown(memory.created_at)}, by {by}"
    if memory.expires_at:
        yield f"expires {shown(memory.expires_at)}"
    for field, text in memory.index.items():
        yield f"found by {plain(field)}: {plain(text)}"
    yield plain(json.dumps(memory.value, indent=2, ensure_ascii=False), keep="\n")


@command(takes="expected_revision, idempotency_key")
def delete(store: Store, namespace: Namespace, key: str, **how: Any) -> None:
    """Delete one memory.

    \b
    Its history stays as long as the store keeps any; to erase a user for good: alcove wipe.
    Nothing there is not an error.
    Example:  alcove delete user:noop:notes tea
    """
    deletion = store.delete(namespace, key, **how)
    said = f"deleted, revision {deletion.revision}" if deletion.deleted else "nothing was there"
    show(deletion, f"{plain(key)} in {namespace}: {said}")


@command(make=True)
@click.argument("file", type=click.File("rb"), default="-")
def batch(store: Store, file: BinaryIO, idempotency_key: str | None) -> None:
    """Do many operations in one transaction: all of them or none.

    \b
    FILE has one a line, as JSON; '-' is stdin. Each is a put, get, delete or touch:
      {"op": "put", "namespace": "user:noop:notes", "key": "tea", "value": {"cups": 2}}
      {"op": "touch", "namespace": "user:noop:notes", "key": "tea", "ttl_seconds": 3600}
    Example:  alcove batch operations.jsonl
    """
    lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    operations = [object_of(line, f"line {number}") for number, line in lines]
    results: list[OperationResult] = []
    cursor: str | None = ""
    while cursor is not None:
        page = store.batch(operations, idempotency_key=idempotency_key, after_cursor=cursor or None)
        results, cursor = [*results, *page], page.after_cursor
    show_table(
        zip(operations, results, strict=True), "op, namespace, key, rev, value", whole={"results": results},
        op=lambda pair: pair[0]["op"], namespace=lambda pair: Namespace.checked(pair[0]["namespace"]),
        key=lambda pair: pair[0]["key"], rev=lambda pair: (pair[1] and pair[1].revision) or "none",
        value=lambda pair: getattr(pair[1], "value", None), empty="no operations",
    )  # fmt: skip


@command(takes="filter, as_of, limit, offset")
@click.option("--mode", type=click.Choice(["hybrid", "semantic", "keyword"]), default="hybrid",
              help="How a query ranks.")  # fmt: skip
@click.option(
    "--min-relevance",
    type=click.FloatRange(0, 1),
    metavar="0…1",
    help="Leave out what is less relevant to the query.",
)
@click.option("--min-score", type=click.FloatRange(0, 1), hidden=True, help="Older name of --min-relevance.")
@click.option("--explain", is_flag=True, help="Show each signal's place and share.")
@_UNINDEXED
def search(
    store: Store, prefix: Namespace, filter: Sequence[str], query: str | None = None, *, explain: bool,
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
    explain = explain and query is not None
    told = "why: each signal's place and share=why" if explain else "rev=revision, written=created_at, value"
    asked |= {"query": query, "filter": given(filter, "--filter") or None, "explain": explain}
    show_table(by_offset(store.search, prefix, most=100, **asked),
               f"{'' if query is None else 'relevance:.3f, score:.3f, '}namespace, key, {told}", why=_why,
               empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


def _why(memory: Memory) -> str:
    signals = (memory.explain or {}).items()
    return "  ".join(f"{name} #{signal.rank} {signal.score:+.2f}{_rules(signal)}" for name, signal in signals)


def _rules(signal: RankingSignal) -> str:
    numbers = ", ".join(f"{rule} {number:.2f}" for rule, number in signal.rules.items())
    return f" ({numbers})" if numbers else ""


@command("list", takes="filter, as_of, limit, offset")
@_UNINDEXED
def list_memories(store: Store, prefix: Namespace, filter: Sequence[str], **asked: Any) -> None:
    """List memories below a namespace, without their values.

    \b
    Example:  alcove list user:alice --limit 1000
    """
    asked["filter"] = given(filter, "--filter") or None
    show_table(by_offset(store.list, prefix, most=1000, **asked),
               "namespace, key, rev=revision, written=created_at, expires",
               expires=lambda e: e.expires_at or "never",
               empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


@command(takes="limit, offset")
@click.option("--suffix", type=namespace, default="", help="Only those that end so.")
@click.option("--max-depth", type=click.IntRange(1), help="Cut to so many segments.")
def namespaces(store: Store, prefix: Namespace, limit: int | None = None, **asked: Any) -> None:
    """List the namespaces that hold something, one a line.

    \b
    Example:  alcove namespaces user --max-depth 2
    """
    found = store.namespaces(prefix, limit=limit, **asked)
    for each in found:
        show(each, plain(str(each)))
    if not found and not as_json():
        click.echo(f"nothing is held below {prefix or 'the root'}", err=True)


@command()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these; may be repeated.")
@click.option("--after", metavar="TIME", help="Only what happened later, such as 2026-01-31T12:00:00Z.")
@click.option("--before", metavar="TIME", help="Only what happened earlier.")
@click.option("--after-cursor", metavar="CURSOR", help="Go on after this event.")
@click.option("--follow", "-f", is_flag=True, help="Wait for what happens next, until interrupted.")
def events(store: Store, prefix: Namespace, limit: int = 50, *, follow: bool, **asked: Any) -> None:
    """Show what happened below a namespace.

    \b
    Oldest first; with --follow, from now on or after a cursor.
    Examples:
      alcove events user:alice --kind delete --kind expired
      alcove events --follow --json | jq -r '.kind + " " + .key'
    """
    asked["kinds"] = asked["kinds"] or None
    if follow:
        if asked.pop("after") or asked.pop("before"):
            raise click.UsageError("--follow starts now, or with --after-cursor")
        show_coming(store.follow(prefix, **asked))
        return
    columns = "when=occurred_at, kind, namespace, key, rev=revision, by=written_by.user, value"
    empty = f"nothing happened below {prefix or 'the root'}"
    show_table(_events(store, prefix, limit, **asked), columns, empty=empty)


def _events(
    store: Store, prefix: Namespace, limit: int, after_cursor: str | None, **asked: Any
) -> Iterator[Event]:
    """As many events as are wanted; at a terminal it says where to go on in the end."""
    after = after_cursor
    while limit > 0:
        page = store.events(prefix, limit=min(limit, _PAGE), after_cursor=after, **asked)
        if page.truncated_before and after == after_cursor:
            click.echo(f"events before {shown(page.truncated_before)} are no longer kept", err=True)
        yield from page.events
        if not page.more:
            return
        limit, after = limit - len(page.events), page.after_cursor
    if not as_json():
        click.echo(f"there is more: --after-cursor {after}", err=True)


def show_coming(events: Iterator[Event]) -> None:
    """Prints each event as it comes, and once, until interrupted."""
    with suppress(KeyboardInterrupt):
        for event in events:
            words = [event.occurred_at, f"{event.kind:<7}", event.namespace, event.key, event.value]
            show(event, "  ".join(map(shown, words)))
            sys.stdout.flush()


@command()
def history(store: Store, namespace: Namespace, key: str) -> None:
    """Show every kept version of one memory.

    \b
    Example:  alcove history user:noop:notes tea
    """
    columns = "rev=revision, kind, when=created_at, by=written_by.user, value"
    show_table(_versions(store, namespace, key), columns, empty="")


def _versions(store: Store, namespace: Namespace, key: str) -> Iterator[Version]:
    """Every kept version, newest first, asked for as they are taken."""
    versions = store.history(namespace, key)
    if not versions:
        raise NotFound(f"there is no {plain(key)} in {namespace}, and none is remembered")
    yield from versions
    while versions.after_cursor:
        versions = store.history(namespace, key, after_cursor=versions.after_cursor)
        yield from versions


@command()
@click.argument("before", required=False)
@click.argument("after", required=False)
def diff(store: Store, namespace: Namespace, key: str, before: str | None, after: str | None) -> None:
    """Show what changed in one memory.

    \b
    In its last write, or between two revisions or moments.
    Examples:
      alcove diff user:noop:notes tea
      alcove diff user:noop:notes tea 1 3
      alcove diff user:noop:notes tea 2026-01-31T12:00:00Z
    """
    versions = partial(_versions, store, namespace, key)
    newer = _chosen(versions(), after) if after else next(versions())
    earlier = (each for each in versions() if each.revision < newer.revision)
    older = _chosen(versions(), before) if before else next(earlier, None)
    changes = list[dict[str, Any]]()
    lines = [f"{plain(key)} in {namespace}: {_title(older)} → {_title(newer)}"]
    for path, *values in changed((older and older.value) or {}, newer.value or {}):
        sides = {side: each for side, each in zip(_SIDES, values, strict=True) if each is not _MISSING}
        changes.append({"path": path, **sides})
        for side, value in sides.items():
            sign, colour = _SIDES[side]
            lines.append(click.style(f"{sign} {plain(path)}: {plain(compact(value))}", fg=colour))
    show({"from": older and older.revision, "to": newer.revision, "changes": changes}, *lines)
    if not changes and not as_json():
        click.echo("no difference", err=True)


def _chosen(versions: Iterator[Version], word: str) -> Version:
    """The version with this revision, or the newest not later than this moment."""
    moment = None if word.isdigit() else parse_moment(word, "a revision or a moment")
    for each in versions:
        if each.revision == int(word) if moment is None else parse_moment(each.created_at, "") <= moment:  # type: ignore[operator]
            return each
    raise NotFound(f"no version {word} is kept; the oldest is {_title(each)}")


def _title(version: Version | None) -> str:
    if version is None:
        return "nothing"
    gone = "" if version.value is not None else f", {version.kind}"
    return f"revision {version.revision} ({shown(version.created_at)}{gone})"


def changed(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ, place by place: the path, what was there and what is."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            below = f"{path}.{name}" if path else name
            yield from changed(old.get(name, _MISSING), new.get(name, _MISSING), below)
    elif isinstance(old, list) and isinstance(new, list):
        for n, (before, after) in enumerate(zip_longest(old, new, fillvalue=_MISSING)):
            yield from changed(before, after, f"{path}[{n}]")
    elif type(old) is not type(new) or old != new:
        yield path or "value", old, new


@command()
@click.option("--user", help="Only what this user did, or what was done about them.")
@click.option("--action", help="Only this action, such as user.wipe.")
def audit(store: Store, limit: int, **asked: Any) -> None:
    """Show who operated on what, newest first.

    \b
    Whom something was done to is shown by a pseudonym, the same for the same user. So is an actor
    who has been wiped.
    Examples:
      alcove audit --user alice
      alcove audit --action policies.put --json
    """
    entries = by_cursor(store.admin.audit, field="entries", limit=limit, **asked)
    show_table(entries, "when=at, actor, action, subject, details", empty="nothing was noted")


COMMANDS = [put, touch, get, delete, batch, search, list_memories, namespaces]
TIMELINE = [events, history, diff, audit]
