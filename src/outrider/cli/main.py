"""The `outrider` command: its subcommands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

from copy import copy
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from outrider.cli.options import CliGroup, Commands
from outrider.cli.output.text import one_line, safe
from outrider.errors import OutriderError
from outrider.names import unstorable
from outrider.redaction import mask

if TYPE_CHECKING:
    from outrider.postgres.connection import DatabaseError

COMMANDS = {
    "Develop": {
        "demo": "Watch a small shop handle events while things fail.",
        "dev": "Run all that an app needs, until Ctrl-C.",
        "init": "Write the files of a new service.",
        "contracts": "Keep published events compatible, and document them.",
    },
    "Run": {
        "migrate": "Install or upgrade the schema; register subscriptions.",
        "worker": "Run an app's handlers, jobs, relays, inboxes and rollups.",
        "takeover": "Take an existing outbox or job table over, row by row.",
        "relay": "Run only the relays of an app, list them, or adopt a stream.",
    },
    "Look": {
        "dashboard": "Show everything in a browser, live.",
        "status": "Show every subscription, stream, rollup and worker.",
        "doctor": "Find what is wrong, and say what to do about it.",
        "event": "List events, show the history of one, or withdraw it.",
        "job": "List, show and cancel jobs, run them now, or retry them.",
        "schedule": "List and pause schedules, or run one now.",
        "dlq": "List, show, replay and discard dead letters.",
        "subscription": "Show, pause, rename and retire subscriptions.",
        "inbox": "List inboxes, and read refused entries again.",
        "generations": "Show deployment generations, or move one to other workers.",
        "audit": "Show what operators did, when and why.",
    },
    "Administer": {
        "rollup": "Check, install, run and remove rollups.",
        "setting": "Show and change the settings in the database.",
        "upkeep": "Create and drop log segments, apply retention, release leases.",
        "roles": "Create database roles with only the rights that they need.",
        "tenants": "Isolate tenants; export or erase the data of one.",
        "uninstall": "Remove Outrider from a database.",
    },
}
"""The commands by their panel in the help, each with its first sentence.

Each is a module in outrider.cli.commands, imported when it runs: the list of commands is shown without them.
"""
INTERRUPTED = 130
USAGE: Any = typer.BadParameter.__mro__[1]
"""The class of every usage error; some versions of typer carry a click of their own."""


class TopLevel(CliGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for sentences in COMMANDS.values():
            if cmd_name in sentences and cmd_name not in self.commands:
                command: Any = get_command(import_module(f"outrider.cli.commands.{cmd_name}").commands)
                command.name = cmd_name
                command.help = command.help or sentences[cmd_name]
                self.commands[cmd_name] = command
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed = copy(self)
        listed.commands = {
            name: TyperCommand(name, help=sentence, rich_help_panel=panel)
            for panel, sentences in COMMANDS.items()
            for name, sentence in sentences.items()
        }
        super(TopLevel, listed).format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for each in args:
            if unstorable(each):
                raise typer.BadParameter(f"{each!r:.60} is not UTF-8 text")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OutriderError as error:
            raise fail(str(error)) from error
        except _database_error() as error:
            said = str(error).strip() or type(error).__name__
            hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
            raise fail(f"the database reported: {said.splitlines()[0]}{hint}") from error
        except USAGE as error:
            error.message = one_line(error.message)
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _database_error() -> type[DatabaseError]:
    """Imported when something is raised: the list of commands needs no database."""
    from outrider.postgres.connection import DatabaseError

    return DatabaseError


def fail(sentence: str) -> typer.Exit:
    typer.echo(f"outrider: {safe(mask(sentence))}", err=True)
    return typer.Exit(1)


cli = Commands(
    cls=TopLevel,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The app: --app, OUTRIDER_APP, or app under \\[tool.outrider] in pyproject.toml.\n\n"
    "The database: --dsn, the app's own, OUTRIDER_DSN, the file that OUTRIDER_DSN_FILE names, or dsn under "
    "\\[tool.outrider] in pyproject.toml.\n\n"
    "Exit codes: 0 done; 1 refused or failed, with one sentence on stderr; 2 the command line is wrong; "
    "130 ended by Ctrl-C. Commands with other exit codes name them in their help.\n\n"
    "Pages such as docs/roles.md are in the source distribution.",
)


def show_version(wanted: bool) -> None:
    if wanted:
        from outrider.postgres.schema.migrate import known

        typer.echo(f"outrider {version('outrider')}, schema version {known()[-1].version}")
        raise typer.Exit


@cli.callback()
def outrider(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version, and that of the schema."
        ),
    ] = False,
) -> None:
    """Events out of your Postgres transaction, to every subscriber.

    Begin with [bold]outrider demo[/]. [bold]outrider COMMAND --help[/] explains a command, with examples.
    """


def main() -> None:
    cli(prog_name="outrider")
