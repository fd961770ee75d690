"""What happened: events, the history of one memory, what changed in it, and the audit log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.output import Output, compact, plain, shown
from alcove.cli.store import by_cursor, on_store
from alcove.core.clock import checked_moment
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import KINDS, Event, Version

if TYPE_CHECKING:
    from alcove import Store

_PAGE = 200
_MISSING = object()


@on_store()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these; may be repeated.")
@click.option("--after", metavar="TIME", help="Only what happened later, such as 2026-01-31T12:00:00Z.")
@click.option("--before", metavar="TIME", help="Only what happened earlier.")
@click.option("--after-cursor", metavar="CURSOR", help="Go on after this event.")
@click.option("--follow", "-f", is_flag=True, help="Wait for what happens next, until interrupted.")
def events(
    store: Store, out: Output, prefix: Namespace, kinds: Sequence[Any], after_cursor: str | None,
    limit: int = 50, *, follow: bool, **times: str | None,
) -> None:  # fmt: skip
    """Show what happened below a namespace.

    \b
    Oldest first; with --follow, from now on or after a cursor.
    Examples:
      alcove events user:alice --kind delete --kind expired
      alcove events --follow --json | jq -r '.kind + " " + .key'
    """
    if follow:
        if any(times.values()):
            raise click.UsageError("--follow starts now, or with --after-cursor")
        show_coming(out, store.follow(prefix, kinds=kinds or None, after_cursor=after_cursor))
        return
    out.table(
        _events(store, out, prefix, limit, after_cursor, kinds=kinds or None, **times),
        "when=occurred_at, kind, namespace, key, rev=revision, by=written_by.user, value",
        empty=f"nothing happened below {prefix or 'the root'}",
    )


def _events(
    store: Store, out: Output, prefix: Namespace, limit: int, cursor: str | None, **asked: Any
) -> Iterator[Event]:
    """As many events as are wanted; at a terminal it says where to go on in the end."""
    after = cursor
    while limit > 0:
        page = store.events(prefix, limit=min(limit, _PAGE), after_cursor=after, **asked)
        if page.truncated_before and after == cursor:
            click.echo(f"events before {shown(page.truncated_before)} are no longer kept", err=True)
        yield from page.events
        if not page.more:
            return
        limit, after = limit - len(page.events), page.after_cursor
    if not out.as_json:
        click.echo(f"there is more: --after-cursor {after}", err=True)


def show_coming(out: Output, events: Iterator[Event]) -> None:
    """Prints each event as it comes, and once, until interrupted."""
    try:
        for event in events:
            words = [event.occurred_at, f"{event.kind:<7}", event.namespace, event.key, event.value]
            out.record(event, "  ".join(shown(word) for word in words))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return


@on_store()
def history(store: Store, out: Output, namespace: Namespace, key: str) -> None:
    """Show every kept version of one memory.

    \b
    Example:  alcove history user:noop:notes tea
    """
    columns = "rev=revision, kind, when=created_at, by=written_by.user, value"
    out.table(_versions(store, namespace, key), columns, empty="")


def _versions(store: Store, namespace: Namespace, key: str) -> Iterator[Version]:
    """Every kept version, newest first, asked for as they are taken."""
    versions = store.history(namespace, key)
    if not versions:
        raise NotFound(f"there is no {plain(key)} in {namespace}, and none is remembered")
    yield from versions
    while versions.after_cursor:
        versions = store.history(namespace, key, after_cursor=versions.after_cursor)
        yield from versions


@on_store()
@click.argument("before", required=False)
@click.argument("after", required=False)
def diff(
    store: Store, out: Output, namespace: Namespace, key: str, before: str | None, after: str | None
) -> None:
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
    older = _chosen(versions(), before) if before else next(
        (each for each in versions() if each.revision < newer.revision), None
    )  # fmt: skip
    changes = [*changed((older and older.value) or {}, newer.value or {})]
    if out.as_json:
        sides = {"from": older and older.revision, "to": newer.revision}
        click.echo(compact({**sides, "changes": [_change(*each) for each in changes]}))
        return
    click.echo(f"{plain(key)} in {namespace}: {_title(older)} → {_title(newer)}")
    for path, old, new in changes:
        for sign, side, colour in (("-", old, "red"), ("+", new, "green")):
            if side is not _MISSING:
                click.echo(click.style(f"{sign} {plain(path)}: {plain(compact(side))}", fg=colour))
    if not changes:
        click.echo("no difference", err=True)


def _chosen(versions: Iterator[Version], word: str) -> Version:
    """The version with this revision, or the newest not later than this moment."""
    moment = None if word.isdigit() else checked_moment(word, "a revision or a moment")
    for each in versions:
        if each.revision == int(word) if moment is None else checked_moment(each.created_at, "") <= moment:  # type: ignore[operator]
            return each
    raise NotFound(f"no version {word} is kept; the oldest is {_title(each)}")


def _title(version: Version | None) -> str:
    if version is None:
        return "nothing"
    gone = "" if version.value is not None else f", {version.kind}"
    return f"revision {version.revision} ({shown(version.created_at)}{gone})"


def _change(path: str, old: Any, new: Any) -> dict[str, Any]:
    """As JSON: a side that is not there has no field."""
    sides = {"before": old, "after": new}
    return {"path": path, **{name: side for name, side in sides.items() if side is not _MISSING}}


def changed(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ, place by place: the path, what was there and what is."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            below = f"{path}.{name}" if path else name
            yield from changed(old.get(name, _MISSING), new.get(name, _MISSING), below)
    elif isinstance(old, list) and isinstance(new, list):
        for n in range(max(len(old), len(new))):
            before, after = (side[n] if n < len(side) else _MISSING for side in (old, new))
            yield from changed(before, after, f"{path}[{n}]")
    elif type(old) is not type(new) or old != new:
        yield path or "value", old, new


@on_store()
@click.option("--user", help="Only what this user did, or what was done about them.")
@click.option("--action", help="Only this action, such as user.wipe.")
def audit(store: Store, out: Output, limit: int = 100, **asked: Any) -> None:
    """Show who operated on what, newest first.

    \b
    Whom something was done to is shown by a pseudonym, the same for the same user.
    Examples:
      alcove audit --user alice
      alcove audit --action policies.put --json
    """
    entries = by_cursor(partial(store.admin.audit, **asked), "entries", limit)
    out.table(entries, "when=at, actor, action, subject, details", empty="nothing was noted")


COMMANDS = [events, history, diff, audit]
