"""The `alcove` command.

Exit codes, for scripts: 0 done, 1 not found or a problem found, 2 wrong input or refused, 3 the store or the
server is not available now.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from alcove.cli import admin, agents, chat, context, demo, maintenance, mcp, memories, transfer
from alcove.cli.output import escape
from alcove.core import __version__
from alcove.core.errors import AlcoveError, NotFound, RateLimited, Unavailable, UpstreamFailed

GROUPS = {
    "Memories": memories.COMMANDS,
    "Overview": memories.OVERVIEW,
    "Agents": [*chat.COMMANDS, *agents.COMMANDS, mcp.mcp, demo.demo],
    "Context and conversations": context.COMMANDS,
    "Events and history": memories.TIMELINE,
    "Users and their data": admin.PEOPLE,
    "Export, import and backup": transfer.COMMANDS,
    "Maintenance": maintenance.UPKEEP,
    "Policies, settings and API keys": admin.RULES,
    "Server and command line": maintenance.SERVING,
}


class AlcoveGroup(click.Group):
    """Prints errors of ours as one line with an exit code, never a stack trace; lists commands by group."""

    def invoke(self, context: click.Context) -> NoReturn:
        try:
            code = super().invoke(context)
            sys.stdout.flush()
        except AlcoveError as error:
            click.echo("alcove: " + escape(error.message, keep="\n"), err=True)
            sys.exit(exit_code(error))
        except BrokenPipeError:  # `alcove export | head`: the reader has closed the pipe
            sys.stderr.close()
            sys.exit(0)
        except OSError as error:  # of a file that was named, or of the output
            click.echo(f"alcove: {error}", err=True)
            sys.exit(2)
        sys.exit(code)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(each.name or "", each.get_short_help_str(80)) for each in commands])


def exit_code(error: AlcoveError) -> int:
    """The exit code for an error; one without a class of its own is the server's fault, not the caller's."""
    if isinstance(error, NotFound):
        return 1
    is_ours = isinstance(error, Unavailable | RateLimited | UpstreamFailed) or type(error) is AlcoveError
    return 3 if is_ours else 2


@click.group(
    cls=AlcoveGroup,
    commands=[command for commands in GROUPS.values() for command in commands],
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Stores: --at memory.db or --at http://127.0.0.1:8080, or the variable ALCOVE_AT.
Type namespaces as user:alice:notes; write ':' or '%' inside a segment as %3A or %25.
Exit codes: 0 done, 1 not found or a problem found, 2 wrong or refused, 3 unavailable.
Completion:  eval "$(alcove completion bash)"
""",
)
@click.version_option(__version__, prog_name="alcove")
def main() -> None:
    """Memory for AI agents: private per agent and user, shared where a team says so."""
