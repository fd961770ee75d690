"""Commands for who wants to look: what lies where, what is new, what happened, what is alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from alcove.cli.output import show_table
from alcove.cli.store import command

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.core.namespace import Namespace


@command()
def tree(store: Store, prefix: Namespace, limit: int = 100) -> None:
    """Show what lies right below a namespace, with counts.

    \b
    Example:  alcove tree user:alice
    """
    show_table(store.tree(prefix, limit=limit), "namespace, here, with all below it=memories",
               empty=f"nothing lies below {prefix or 'the root'}")  # fmt: skip


@command()
def newest(store: Store, prefix: Namespace, limit: int = 20) -> None:
    """Show what was written last.

    \b
    Example:  alcove newest user:alice --limit 5
    """
    show_table(store.newest(prefix, limit=limit), "written=created_at, namespace, key, value",
               empty=f"nothing found below {prefix or 'the root'}")  # fmt: skip


@command()
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True, help="How far back.")
def activity(store: Store, prefix: Namespace, *, days: int) -> None:
    """Show how often what happened, by day.

    \b
    Example:  alcove activity user:alice --days 7
    """
    told = store.activity(prefix, days=days)
    show_table(told.events, "day, kind, count", whole=told, empty=f"nothing happened in {days} days")


@command("map")
def map_memories(store: Store, prefix: Namespace, limit: int = 1000) -> None:
    """Lay memories out by meaning: close together is alike.

    \b
    Example:  alcove map user:alice --json
    """
    drawn = store.map(prefix, limit=limit)
    columns = "x:.2f, y:.2f, namespace, key, text"
    show_table(drawn.points, columns, whole=drawn, empty="nothing is indexed here yet")


COMMANDS = [tree, newest, activity, map_memories]
