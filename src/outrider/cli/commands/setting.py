"""`outrider setting`: the limits that SQL must see, and changing one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.audit_options import ByOption, ReasonOption, signed
from outrider.cli.bulk_actions import print_json
from outrider.cli.output.text import moment, one_line, tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.postgres.admin import audit
from outrider.postgres.admin.audit import Setting, Signed

DEFAULTS = {
    "payload_max_bytes": 262_144,
    "retention.audit_days": 400,
    "retention.dead_letter_days": 45,
    "retention.log_days": 45,
    "retention.log_grace_days": 7,
    "retention.receipt_days": 60,
    "retention.receipt_grace_days": 7,
    "segments.ahead": 16,
    "segments.days": 7,
    "segments.size": 1_000_000,
    "upkeep.lock_timeout_ms": 200,
}
"""As the migrations make them."""

commands = typer.Typer(no_args_is_help=True, help="See and change the settings that are kept in the database.")


@commands.command("list")
def show(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every setting, its value, its default and its limits.

    Of a rollup's settings: what was declared, and what was entered instead.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider setting list[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_settings(place))
    if as_json:
        told = [asdict(each) | {"default": DEFAULTS.get(each.name)} for each in found]
        print_json(schema=place.schema, settings=told)
        return
    table = Table(title=f"schema {place.schema}", padding=(0, 0), pad_edge=False)
    some_entered = any(each.entered is not None for each in found)
    for column in ("setting", "value", *["entered"] * some_entered, "default", "limits", "since"):
        table.add_column(column, overflow="fold", no_wrap=column in ("setting", "value", "default"))
    for each in found:
        entered = [one_line(each.entered or "")] * some_entered
        default, limits = str(DEFAULTS.get(each.name, "")), f"{each.least} to {each.greatest}"
        row = (one_line(each.name), str(each.value), *entered, default, limits, moment(each.updated_at))
        table.add_row(*map(Text, row))
    Console().print(table)


@commands.command("set")
def change(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="A whole number within its limits.")] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Of a rollup: what was declared holds again, whatever was entered.")
    ] = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a setting, within its limits. Audited, with the value that it had.

    Needs: a role that may operate.

    Examples:

      [bold]outrider setting set payload_max_bytes 524288 --reason 'larger invoices'[/]
      [bold]outrider setting set rollup.hub.imports.debounce_seconds --default[/]
    """
    if (value is None) != default:
        raise typer.BadParameter("give a VALUE, or --default, not both")
    place = find_place(Asked(app, dsn, embedded, schema))
    asyncio.run(_set(place, name, value, signed(by, reason)))
    if as_json:
        print_json(schema=place.schema, setting=name, value=value)
        return
    tell(f"{name} is {value}" if value is not None else f"{name} is as declared")


async def _settings(place: Place) -> list[Setting]:
    async with place.connect() as conn:
        return await audit.settings(conn, place.schema)


async def _set(place: Place, name: str, value: str | None, by: Signed) -> None:
    async with place.connect() as conn:
        await audit.set_setting(conn, name, value, place.schema, by)
