"""What a privacy officer does: what is held of a person, looking through it, and forgetting them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from alcove.cli.output import (
    Refused,
    as_json,
    compact,
    confirm,
    count,
    plain,
    show,
    show_table,
    shown,
    writing,
)
from alcove.cli.store import by_cursor, command
from alcove.core.records import Receipt

if TYPE_CHECKING:
    from alcove import Store


@command()
def held(store: Store, user: str) -> int:
    """Show what is held of a user.

    \b
    Exit code 1 if nothing is.
    Example:  alcove held alice
    """
    found = store.admin.held(user)
    lines = [f"{plain(user)}: {count(found.memories, 'memory')}, {count(found.versions, 'version')}, "
             f"{shown(found.bytes)} bytes"]  # fmt: skip
    if found.first_written:
        lines.append(f"written from {shown(found.first_written)} to {shown(found.last_written)}")
    lines.append(f"in rooms of others: {count(found.shared, 'version')}; API keys: {found.api_keys}; "
                 f"encryption key: {'yes' if found.key else 'none'}")  # fmt: skip
    show(found, *lines)
    for what, rooms in (("namespace", found.namespaces), ("room of others", found.shared_rooms)):
        if rooms and not as_json():
            show_table(rooms, f"{what}=namespace, memories, versions, bytes", empty="")
    return 0 if found.versions or found.shared or found.api_keys or found.key else 1


@command()
def review(store: Store, user: str, limit: int = 100) -> None:
    """Look through the memories of a user; audited.

    \b
    What is in their rooms, and what they wrote into rooms of others, in the order it was written.
    Example:  alcove review alice
    """
    found = by_cursor(partial(store.admin.memories_of, user), "items", limit)
    columns = "id, written=created_at, namespace, key, value"
    show_table(found, columns, empty=f"nothing of {plain(user)} is held")


@command()
def remove(store: Store, user: str, id: str, *, yes: bool) -> None:
    """Take one memory of a user away for good; audited.

    \b
    Every version of it goes, and a restored backup does not bring it back. ID is what `alcove review` shows.
    Example:  alcove remove alice 5d0c8a52-7a3e-4f5b-9c1d-2e6f7a8b9c0d --yes
    """
    confirm(f"Take the memory {plain(id)} of {plain(user)} away, for good?", yes=yes)
    store.admin.remove(user, id)
    show({"removed": id}, f"removed {plain(id)}")


@command()
@click.option("--shared", type=click.Choice(["keep", "anonymise", "remove"]), default="anonymise",
              show_default=True, help="What becomes of what they wrote into rooms of others.")  # fmt: skip
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until no byte of it is left.")
@click.option("--dry-run", is_flag=True, help="Erase nothing, and say what would be.")
@click.option("--receipt", "file", metavar="FILE", help="A new file to keep the receipt in.")
def wipe(store: Store, user: str, *, dry_run: bool, file: str | None, yes: bool, **how: Any) -> None:
    """Erase a user for good, and print the receipt.

    \b
    Every version is removed, the user's key destroyed and the file rebuilt, so that no byte of it is left.
    What they wrote into rooms of others stays without their name, unless --shared says otherwise.
    Exit code 1 if nothing is held of them.
    Examples:
      alcove wipe alice --dry-run
      alcove wipe alice --yes --receipt alice.json
    """
    if dry_run and file:
        raise click.UsageError("a dry run gives no receipt to keep")
    if dry_run:
        receipt = store.wipe(user, dry_run=True, shared=how["shared"])
        show(receipt, "Nothing was erased. This would be:", *_told(receipt))
        return
    confirm(f"Erase everything that belongs to {plain(user)}, for good?", yes=yes)
    with writing(file) as write:
        if sys.stderr.isatty():
            click.echo("erasing, and rebuilding the file …", err=True)
        receipt = store.wipe(user, **how)
        stays = "erased, but for what stays in rooms of others" if receipt.shared_left else "forgotten"
        show(receipt, f"{plain(user)} is {stays}.", *_told(receipt))
        write(compact(receipt).encode() + b"\n")


def _told(receipt: Receipt) -> Iterator[str]:
    removed = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in receipt.removed.items())
    ((fate, elsewhere),) = receipt.shared.items()
    yield f"  removed        {removed}"
    yield f"  key destroyed  {'yes' if receipt.key_destroyed else 'there was none'}"
    yield f"  shared rooms   {count(elsewhere, 'version')} ({fate})"
    for room in receipt.shared_left:
        left = f"{count(room.versions, 'version')}, {'with' if fate == 'keep' else 'without'} the name"
        yield f"  stays          {plain(str(room.namespace))}: {left} (--shared remove takes it away)"
    if receipt.wiped_at:
        scrubbed = "yes, no byte of what was removed is left" if receipt.scrubbed else "not yet; it follows"
        yield f"  scrubbed       {scrubbed}"


receipt = click.Group("receipt", help="Check the receipts of wipes.")


@command(group=receipt)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def verify(store: Store, file: Path) -> int:
    """Compare a receipt with the ledger of wipes.

    \b
    Exit code 1 if the ledger has no such wipe, or the receipt was changed.
    Example:  alcove receipt verify alice.json
    """
    try:
        given = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Refused(f"{file} is not the receipt of a wipe") from None
    verified = store.admin.verify_receipt(given)
    whose = f"this wipe of {plain(str(given.get('user')))}, and the receipt is as it was given."
    none = "no such wipe, or the receipt is not as it was given."
    show({"verified": verified}, f"The ledger has {whose if verified else none}")
    return 0 if verified else 1


COMMANDS: list[click.Command] = [held, review, remove, wipe, receipt]
