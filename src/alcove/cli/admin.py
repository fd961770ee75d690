"""What admins and privacy officers do: what is held of a person, forgetting them, and a store's rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from alcove.cli import output
from alcove.cli.output import confirm, count, plain, show, show_table, shown
from alcove.cli.store import by_cursor, command, given, roles_option
from alcove.core.clock import parse_duration
from alcove.core.records import Receipt

if TYPE_CHECKING:
    from alcove.client.store import Store

TEXTS = ("authz", "attributes", "filter")


@command()
def whoami(store: Store) -> None:
    """Show who you are to a store.

    \b
    Example:  alcove whoami --at http://127.0.0.1:8080 --token "$TOKEN"
    """
    found = store.whoami()
    through = f", through {plain(found.client)}" if found.client else ""
    roles = f", with the roles {', '.join(map(plain, found.roles))}" if found.roles else ""
    show(found, f"{plain(found.user)}{through}{roles}")


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
        if rooms and not output.as_json():
            show_table(rooms, f"{what}=namespace, memories, versions, bytes", empty="")
    return 0 if found.versions or found.shared or found.api_keys or found.key else 1


@command()
def review(store: Store, user: str, limit: int) -> None:
    """Look through the memories of a user; audited.

    \b
    What is in their rooms, and what they wrote into rooms of others, in the order it was written.
    Example:  alcove review alice
    """
    each = None
    for each in by_cursor(store.admin.memories_of, user, field="items", limit=limit):
        head = click.style(f"{shown(each.created_at)}  {shown(each.namespace)}", bold=True)
        show(each, head, f"  {plain(each.key)}: {shown(each.value)}", f"  {each.id}")
    if each is None and not output.as_json():
        click.echo(f"nothing of {plain(user)} is held", err=True)


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
    with output.writing(file) as write:
        if sys.stderr.isatty():
            click.echo("erasing, and rebuilding the file …", err=True)
        receipt = store.wipe(user, **how)
        stays = "erased, but for what stays in rooms of others" if receipt.shared_left else "forgotten"
        show(receipt, f"{plain(user)} is {stays}.", *_told(receipt))
        write(output.compact(receipt).encode() + b"\n")


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
        if receipt.scrubbed:
            scrubbed = "yes, no byte of it is left in the files of the store"
        elif any(residue.in_data_files for residue in receipt.remains):
            scrubbed = "not all of it"
        else:
            scrubbed = "not yet; it follows"
        yield f"  scrubbed       {scrubbed}"
    for residue in receipt.remains:
        yield f"  remains        in {residue.where}"
        yield f"                 until {residue.until}"
        yield f"                 a superuser ends it now: {residue.command}"


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
        raise output.Refused(f"{file} is not the receipt of a wipe") from None
    verified = store.admin.verify_receipt(given)
    whose = f"this wipe of {plain(str(given.get('user')))}, and the receipt is as it was given."
    none = "no such wipe, or the receipt is not as it was given."
    show({"verified": verified}, f"The ledger has {whose if verified else none}")
    return 0 if verified else 1


policy = click.Group("policy", help="Show policies, try what they would decide, and put them in force.")


_folder_option = partial(
    click.option, "--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


def _texts(folder: Path | None) -> dict[str, str | None]:
    """The policies of a folder, by name."""
    files = {name: folder / f"{name}.rego" for name in TEXTS} if folder else {}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}


@command("show", group=policy)
@click.argument("name", type=click.Choice(TEXTS), required=False)
def show_policies(store: Store, name: str | None) -> None:
    """Print the policies in force, or one of them.

    \b
    Example:  alcove policy show authz > authz.rego
    """
    found = store.admin.policies()
    if output.as_json():
        show(found)
    elif name:
        click.echo(getattr(found, name), nl=False)
    else:
        for each in TEXTS:
            whence = "put by an admin" if each in found.stored else "from the folder, or built in"
            click.echo(click.style(f"# {each}.rego ({whence})", bold=True))
            click.echo(getattr(found, each).rstrip("\n") + "\n")


@command(group=policy)
@click.argument("input", nargs=-1, required=True)
@_folder_option(help="Try the *.rego files of this folder instead of those in force.")
def test(store: Store, input: tuple[str, ...], folder: Path | None) -> int:
    """Show what the policies would say to an input.

    \b
    INPUT is a JSON object, or '-' for one on stdin. Nothing is changed.
    Exit code 1 if authz would deny it.
    Example:
      alcove policy test '{"operation": "read", "namespace": ["user", "bob"], "key": "k",
                           "context": {"user_id": "alice", "jwt_claims": {}, "agent": null, "grants": []}}'
    """
    said = store.admin.test_policies(given(input, "INPUT"), _texts(folder))
    show(said, *(f"{rule:<20}{output.compact(answer)}" for rule, answer in said.items()))
    decision = said.get("decision")
    return 0 if isinstance(decision, dict) and decision.get("allow") is True else 1


@command("put", group=policy)
@_folder_option(help="Where the *.rego files are: authz, attributes, filter, or some of them.")
@click.option("--reset", is_flag=True, help="Take back what was put.")
def put_policies(store: Store, folder: Path | None, *, reset: bool) -> None:
    """Put policies in force, at once and in every process.

    \b
    All that was put before is replaced; one that the folder does not have is the server's own or the built-in
    one. Try them first: alcove policy test --dir FOLDER.
    Example:  alcove policy put --dir policies
    """
    texts = _texts(folder)
    if bool(texts) == reset:
        raise click.UsageError("say which: --dir with authz.rego, attributes.rego or filter.rego, "
                               "or --reset")  # fmt: skip
    found = store.admin.put_policies(texts)
    stored = ", ".join(found.stored) or "none"
    show(found, f"put by an admin: {stored}; the others are from the folder, or built in")


@command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
def settings(store: Store, changes: tuple[str, ...]) -> None:
    """Show the limits and retention in force, or change some of them.

    \b
    Changes hold at once and in every process; null takes one back. Days may be typed 30d or 12h.
    Examples:
      alcove settings
      alcove settings retention_days=30d max_batch=500
      alcove settings retention_days=null
    """
    wanted = given(changes, "CHANGES")
    for name, value in wanted.items():
        if name.endswith("_days") and isinstance(value, str):
            wanted[name] = parse_duration(value, unit="d") or value
    show(store.admin.put_settings(wanted) if wanted else store.admin.settings())


apikey = click.Group("apikey", help="Make, list and revoke the API keys of a store.")


@command(group=apikey)
@click.option("--client", required=True, help="The program that will use it.")
@click.option("--user", help="Whom it acts for.")
@click.option("--trusted", is_flag=True, help="It may name the user of each request with X-User-ID.")
@roles_option
def create(store: Store, roles: tuple[str, ...], **whom: Any) -> None:
    """Make a key; it is shown once.

    \b
    Example:  alcove apikey create --client phone-app --user alice
    """
    if not whom["trusted"] and not whom["user"]:
        raise click.UsageError("--user is needed unless the key is --trusted to name the user itself")
    key = store.api_keys.create(roles=roles, **whom)
    show({"key": key}, key)


@command("list", group=apikey)
def list_keys(store: Store) -> None:
    """List the keys that have not been revoked."""
    known = store.api_keys.list()
    show_table(known, "id, client, user, roles, trusted, made=created_at", empty="there are no API keys")


@command(group=apikey)
def revoke(store: Store, id: str) -> None:
    """Make a key useless, from now on and in every worker.

    \b
    Example:  alcove apikey revoke 0123456789ab
    """
    store.api_keys.revoke(id)
    show({"revoked": id}, f"revoked {id}")


PEOPLE: list[click.Command] = [whoami, held, review, remove, wipe, receipt]
RULES: list[click.Command] = [policy, settings, apikey]
