"""What a privacy officer does: what is held of a person, and forgetting them."""

from __future__ import annotations

import click

from alcove.cli.output import Output, confirm, count, plain, shown, working
from alcove.cli.store import on_store
from alcove.client import Alcove
from alcove.records import Shared
from alcove.reports import Held


@click.command()
@on_store()
@click.argument("user")
def held(store: Alcove, out: Output, user: str) -> None:
    """Show what is held of a user.

    \b
    Exit code 1 if nothing is.
    Example:  alcove held alice
    """
    found = store.admin.held(user)
    if out.as_json:
        out.record(found, "")
    else:
        _tell(out, user, found)
    if not (found.versions or found.shared or found.api_keys or found.key):
        click.get_current_context().exit(1)


def _tell(out: Output, user: str, found: Held) -> None:
    click.echo(f"{plain(user)}: {count(found.memories, 'memory')}, {count(found.versions, 'version')}, "
               f"{shown(found.bytes)} bytes")  # fmt: skip
    if found.first_written:
        click.echo(f"written from {shown(found.first_written)} to {shown(found.last_written)}")
    click.echo(f"in rooms of others: {count(found.shared, 'version')}; API keys: {found.api_keys}; "
               f"encryption key: {'yes' if found.key else 'none'}")  # fmt: skip
    if found.namespaces:
        out.table(
            found.namespaces,
            ["namespace", "memories", "versions", "bytes"],
            lambda n: [n.namespace, n.memories, n.versions, n.bytes],
            empty="",
        )


@click.command()
@on_store()
@click.argument("user")
@click.option(
    "--shared",
    type=click.Choice(["keep", "anonymise", "remove"]),
    default="anonymise",
    show_default=True,
    help="What becomes of what they wrote into rooms of others.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until no byte of it is left.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def wipe(store: Alcove, out: Output, user: str, shared: Shared, *, wait: bool, yes: bool) -> None:
    """Erase a user for good, and print the receipt.

    \b
    Every version is removed, the user's key destroyed and the file rebuilt, so that no byte is left.
    Example:  alcove wipe alice --yes
    """
    confirm(f"Erase everything that belongs to {plain(user)}, for good?", yes=yes)
    with working("erasing, and rebuilding the file"):
        receipt = store.wipe(user, shared=shared, wait=wait)
    removed = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in receipt.removed.items())
    ((fate, elsewhere),) = receipt.shared.items()
    lines = [
        f"{plain(user)} is forgotten.",
        f"  removed        {removed}",
        f"  key destroyed  {'yes' if receipt.key_destroyed else 'there was none'}",
        f"  shared rooms   {count(elsewhere, 'version')} ({fate})",
        f"  scrubbed       {'yes, no byte is left' if receipt.scrubbed else 'not yet; it follows'}",
    ]
    out.record(receipt, "\n".join(lines))


COMMANDS = [held, wipe]
