"""`outrider uninstall`: take Outrider out of a database, after saying exactly what would be lost."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.output.text import one_line, tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import UninstallRefused
from outrider.postgres.schema.uninstall import Survey, refuse, survey
from outrider.postgres.schema.uninstall import uninstall as remove


def uninstall(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    force: Annotated[bool, typer.Option("--force", help="Lose what is unread, parked, dead or staged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the schema's name.")] = False,
    keep_schema: Annotated[
        bool, typer.Option("--keep-schema", help="Leave the schema, and what is not ours in it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be lost, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop the schema with the log, the receipts and everything else of Outrider's.

    Says first what that is. Refused while a subscription has unread, parked or
    dead events, or a rollup rows that wait, unless forced; and in any case while
    workers run, while rollups are installed (outrider rollup uninstall), while
    views, triggers or foreign keys of yours need our tables, and while the schema
    holds something of yours: nothing cascades, drop or move those yourself.

    Locks out publishers, looks again, then drops, in one transaction: an event
    that is committed meanwhile is counted, never lost unseen. Gives up when the
    tables stay in use for 5 s. Where nothing is installed there is nothing to do.

    Needs: the role that owns the schema (the one that migrated).

    Examples:

      [bold]outrider uninstall --dsn postgresql://localhost/shop --dry-run[/]
      [bold]outrider uninstall --dsn postgresql://localhost/shop[/]
      [bold]outrider uninstall --schema events --force --yes --json[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    asyncio.run(_run(place, force=force, yes=yes, whole=not keep_schema, dry_run=dry_run, as_json=as_json))


async def _run(place: Place, *, force: bool, yes: bool, whole: bool, dry_run: bool, as_json: bool) -> None:
    async with place.connect(migrated=False) as conn:
        answer: dict[str, Any] = {"schema": place.schema, "database": conn.info.dbname, "dry_run": dry_run}
        show = _Answer(answer, as_json=as_json)
        found = await survey(conn, place.schema, whole=whole)
        if found is None:
            show.nothing()
            return
        reasons = found.refusals(place.schema, force=force, whole=whole)
        if dry_run or not as_json:
            show.survey(found, reasons)
        if dry_run:
            return
        try:
            refuse(found, place.schema, force=force, whole=whole)
            if not yes:
                _confirm(place.schema)
            lost = await remove(conn, place.schema, force=force, whole=whole)
        except UninstallRefused as error:
            if as_json:
                show.survey(found, reasons or [str(error)])
            raise
        if lost is None:  # somebody else was faster
            show.nothing()
        else:
            show.dropped(lost)


def _confirm(schema: str) -> None:
    if not sys.stdin.isatty():
        raise UninstallRefused("nothing was dropped: there is no terminal to ask at; if it is meant, add --yes")
    if (
        typed := typer.prompt(f'Type "{schema}" to drop it for good', err=True, default="", show_default=False)
    ) != schema:
        raise UninstallRefused(f'nothing was dropped: you typed "{typed}", and the schema is "{schema}"')


class _Answer:
    """What is said on stdout: one JSON object, or sentences and a table."""

    def __init__(self, known: dict[str, Any], *, as_json: bool) -> None:
        self._known = known
        self._json = as_json

    def nothing(self) -> None:
        if self._json:
            self._print(installed=False, dropped=False)
        else:
            tell(f'nothing to do: Outrider is not installed in the schema "{self._known["schema"]}" of this database')

    def survey(self, found: Survey, reasons: list[str]) -> None:
        if self._json:
            self._print(installed=True, dropped=False, refused=reasons, **asdict(found))
            return
        tell('schema "{schema}" in database "{database}"'.format(**self._known) + f", version {found.version}")
        tell(f"  events in the log: {found.events}; receipts of what was handled: {found.receipts}")
        if found.publishing:
            tell(f"  open transactions that may have published more: {found.publishing}")
        for name in found.mentions:
            tell(f"  names the schema, stays, and may fail from then on: {name}")
        if found.subscriptions:
            table = Table("subscription", "unread", "parked", "dead")
            for each in found.subscriptions:
                style = "yellow" if each else None
                table.add_row(
                    Text(one_line(each.name)), str(each.unread), str(each.parked), str(each.dead), style=style
                )
            Console().print(table)
        for rollup in found.rollups:
            tell(f"  rollup: {rollup}")
        if self._known["dry_run"]:
            for reason in reasons:
                tell(f"would be refused: {reason}")
            tell("nothing was changed (dry run)")

    def dropped(self, lost: Survey) -> None:
        if self._json:
            self._print(installed=True, dropped=True, refused=[], **asdict(lost))
            return
        owed = ", ".join(str(each) for each in (*lost.subscriptions, *lost.rollups) if each)
        tell(
            'Outrider is gone from the schema "{schema}"'.format(**self._known) + f"; lost with it: {owed}" * bool(owed)
        )

    def _print(self, **more: object) -> None:
        typer.echo(json.dumps(self._known | more, indent=2))
