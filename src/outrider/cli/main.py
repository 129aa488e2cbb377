"""The `outrider` command: its subcommands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outrider.cli.commands import (
    audit,
    contracts,
    demo,
    dev,
    dlq,
    doctor,
    event,
    generations,
    inbox,
    init,
    job,
    migrate,
    relay,
    roles,
    rollup,
    setting,
    status,
    subscription,
    tenants,
    uninstall,
    upkeep,
    worker,
)
from outrider.cli.output.text import one_line, safe
from outrider.errors import OutriderError
from outrider.names import unstorable
from outrider.postgres.connection import DatabaseError
from outrider.redaction import mask

INTERRUPTED = 130
USAGE: Any = typer.BadParameter.__mro__[1]
"""What every wrong command line is; some versions of typer carry a click of their own."""


class Commands(TyperGroup):
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
        except DatabaseError as error:
            said = str(error).strip() or type(error).__name__
            hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
            raise fail(f"the database reported: {said.splitlines()[0]}{hint}") from error
        except USAGE as error:
            error.message = one_line(error.message)
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def fail(sentence: str) -> typer.Exit:
    typer.echo(f"outrider: {safe(mask(sentence))}", err=True)
    return typer.Exit(1)


cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command("demo")(demo.demo)
cli.command("dev")(dev.dev)
cli.command("init")(init.init)
cli.command("worker")(worker.worker)
cli.command("status")(status.status)
cli.command("doctor")(doctor.doctor)
cli.command("audit")(audit.audit)
cli.command("roles")(roles.roles)
cli.command("uninstall")(uninstall.uninstall)
cli.add_typer(migrate.commands, name="migrate")
cli.add_typer(event.commands, name="event")
cli.add_typer(subscription.commands, name="subscription")
cli.add_typer(job.commands, name="job")
cli.add_typer(relay.commands, name="relay")
cli.add_typer(inbox.commands, name="inbox")
cli.add_typer(rollup.commands, name="rollup")
cli.add_typer(generations.commands, name="generations")
cli.add_typer(contracts.commands, name="contracts")
cli.add_typer(dlq.commands, name="dlq")
cli.add_typer(upkeep.commands, name="upkeep")
cli.add_typer(setting.commands, name="setting")
cli.add_typer(tenants.commands, name="tenants")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {version('outrider')}")
        raise typer.Exit


@cli.callback()
def outrider(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Events out of your Postgres transaction, to every subscriber.

    See it work:                     [bold]outrider demo[/]
    Develop without a Postgres:      [bold]outrider dev[/]
    Begin a service:                 [bold]outrider init[/]
    Install or upgrade the schema:   [bold]outrider migrate[/]
    Run all that an app declares:    [bold]outrider worker[/]
    Run only its relays, see them:   [bold]outrider relay[/]
    See what comes in, and did not:  [bold]outrider inbox[/]
    Make one event of many facts:    [bold]outrider rollup[/]
    See how everything is:           [bold]outrider status[/]
    See what is wrong, and why:      [bold]outrider doctor[/]
    See an event's whole life:       [bold]outrider event[/]
    See and change subscriptions:    [bold]outrider subscription[/]
    See, cancel and hasten jobs:     [bold]outrider job[/]
    See and move generations:        [bold]outrider generations[/]
    See and replay dead letters:     [bold]outrider dlq[/]
    See and change settings:         [bold]outrider setting[/]
    See what operators did:          [bold]outrider audit[/]
    Make roles with least rights:    [bold]outrider roles[/]
    Keep tenants apart, erase one:   [bold]outrider tenants[/]
    Keep events readable:            [bold]outrider contracts[/]
    Keep the log from growing:       [bold]outrider upkeep[/]
    Take it out of a database:       [bold]outrider uninstall[/]

    The database: --dsn, else the app's, else OUTRIDER_DSN, else the file that
    OUTRIDER_DSN_FILE names, else dsn under \\[tool.outrider] in pyproject.toml.
    The app: --app, else OUTRIDER_APP, else app under \\[tool.outrider].

    Exit codes: 0 done; 1 refused or failed, with one sentence on stderr; 2 the
    command line is wrong; 130 ended by Ctrl-C. Where a command has others, its
    help says so.
    """


def main() -> None:
    cli(prog_name="outrider")
