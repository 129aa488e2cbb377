"""`outrider setting`: the settings that are kept in the database, because SQL functions read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands
from outrider.cli.output.text import make_table, moment, one_line, print_json, tell
from outrider.cli.target import Target
from outrider.postgres.admin import audit as settings

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
"""The values that the migrations enter."""

commands = Commands(no_args_is_help=True)


@commands.command("list")
def show(target: Target) -> None:
    """Show every setting: its value, its default and its limits.

    For a rollup: the declared value, and the value that an operator has set instead.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider setting list[/]
    """
    found = target.run(lambda conn: settings.settings(conn, target.schema))
    if target.as_json:
        told = [asdict(each) | {"default": DEFAULTS.get(each.name)} for each in found]
        print_json(schema=target.schema, settings=told)
        return
    some_entered = any(each.entered is not None for each in found)
    columns = ("setting", "value", *["entered"] * some_entered, "default", "limits", "since")
    table = make_table(*columns, title=f"schema {target.schema}", unbroken=("setting", "value", "default"))
    for each in found:
        entered = [one_line(each.entered or "")] * some_entered
        default, limits = str(DEFAULTS.get(each.name, "")), f"{each.least} to {each.greatest}"
        row = (one_line(each.name), str(each.value), *entered, default, limits, moment(each.updated_at))
        table.add_row(*map(Text, row))
    Console().print(table)


@commands.command("set")
def change(
    target: Target,
    audit: AuditOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A whole number within its limits.")],
) -> None:
    """Change a setting, within its limits.

    The audit records the change and the previous value.

    Needs: a role that may operate.

    Examples:

      [bold]outrider setting set payload_max_bytes 524288 --reason 'larger invoices'[/]
      [bold]outrider setting set rollup.hub.imports.debounce_seconds 120[/]
    """
    target.run(lambda conn: settings.set_setting(conn, name, value, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, setting=name, value=value)
        return
    tell(f"{name} is {value}")


@commands.command("allow-content-class")
def allow_content_class(
    target: Target,
    audit: AuditOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new content class.")],
    like: Annotated[str, typer.Option(metavar="CLASS", help="Treat it like this one of the four.")] = "restricted",
) -> None:
    """Let events have another content class.

    It becomes the setting content_class.NAME, from 0 (like public) to 3 (like
    restricted). The dashboard hides values by it. Publishers declare the class too:
    Outrider(content_classes=["legal_hold"]). It cannot be taken back, because events
    may have it.

    Needs: a role that may operate.

    Example: [bold]outrider setting allow-content-class legal_hold --like confidential[/]
    """
    new = target.run(lambda conn: settings.allow_content_class(conn, name, like, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, content_class=name, new=new)
        return
    tell(f"{name} is allowed, and treated like {like}" if new else f"{name} was allowed before; nothing has changed")
