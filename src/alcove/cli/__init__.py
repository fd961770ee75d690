"""The `alcove` command: one module for memories, agents, what admins do, and running a store.

Exit codes, for scripts: 0 it is done, 1 it is not there or something was found wrong, 2 the input was wrong
or refused, 3 the store or the server cannot take it now.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from alcove.cli import admin, agents, chat, context, demo, mcp, memories, operating, overview
from alcove.cli.output import plain
from alcove.core import __version__
from alcove.core.errors import AlcoveError, NotFound, RateLimited, Unavailable, UpstreamFailed


class Explained(click.Group):
    """Ends with our errors' own words and an exit code, never with a stack; lists commands by group."""

    def invoke(self, context: click.Context) -> NoReturn:
        try:
            code = super().invoke(context)
            sys.stdout.flush()
        except AlcoveError as error:
            click.echo("alcove: " + plain(error.message, keep="\n"), err=True)
            sys.exit(exit_code(error))
        except BrokenPipeError:  # `alcove export | head`: the reader has had enough
            sys.stderr.close()
            sys.exit(0)
        except OSError as error:  # of a file that was named, or of where the output goes
            click.echo(f"alcove: {error}", err=True)
            sys.exit(2)
        sys.exit(code)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(each.name or "", each.get_short_help_str(80)) for each in commands])


def exit_code(error: AlcoveError) -> int:
    """What a script is told: an error without a class of its own is the server's, not the caller's."""
    if isinstance(error, NotFound):
        return 1
    later = isinstance(error, Unavailable | RateLimited | UpstreamFailed) or type(error) is AlcoveError
    return 3 if later else 2


GROUPS = {
    "Memories": memories.COMMANDS,
    "Looking": overview.COMMANDS,
    "Agents": [*chat.COMMANDS, *agents.COMMANDS, mcp.mcp, demo.demo],
    "What reaches a prompt": context.COMMANDS,
    "What was": memories.TIMELINE,
    "People": admin.PEOPLE,
    "Moving": operating.MOVING,
    "Upkeep": operating.UPKEEP,
    "Rules": admin.RULES,
    "Serving": operating.SERVING,
}


@click.group(
    cls=Explained,
    commands=[command for commands in GROUPS.values() for command in commands],
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Stores: --at memory.db or --at http://127.0.0.1:8080, or the variable ALCOVE_AT.
Namespaces are typed user:alice:notes; a ':' or '%' inside a segment is %3A or %25.
Exit codes: 0 done, 1 not there or something found, 2 wrong or refused, 3 unavailable.
Completion:  eval "$(alcove completion bash)"
""",
)
@click.version_option(__version__, prog_name="alcove")
def main() -> None:
    """Memory for AI agents: private rooms, common rooms, and nobody in a room that is not theirs."""
