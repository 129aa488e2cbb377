"""`outrider uninstall`: remove Outrider from a database, after saying exactly what would be lost."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.options import Commands, DryRunOption
from outrider.cli.output.text import one_line, print_json, tell
from outrider.cli.target import Target
from outrider.errors import UninstallRefused
from outrider.postgres.connection import AsyncSession
from outrider.postgres.schema.uninstall import Survey, refuse, survey
from outrider.postgres.schema.uninstall import uninstall as remove

commands = Commands()


@commands.command()
def uninstall(
    target: Target,
    force: Annotated[
        bool, typer.Option("--force", help="Lose unread events, waiting events, dead letters and rows of rollups.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the schema's name.")] = False,
    keep_schema: Annotated[
        bool, typer.Option("--keep-schema", help="Keep the schema, and what is not Outrider's in it.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove Outrider from a database.

    Drops the schema with the log, the receipts and everything else of Outrider, and
    shows first what that is. Refused, unless forced, while a subscription has unread
    or waiting events or dead letters, or a rollup has waiting rows. Always refused
    while workers run, while rollups are installed (outrider rollup uninstall), while
    your views, triggers or foreign keys need its tables, and while the schema holds
    objects of yours: nothing cascades, drop or move those yourself.

    Locks out publishers, counts again, then drops, in one transaction: events that
    are committed meanwhile are counted too. Gives up when the tables stay in use for
    5 s. Does nothing where Outrider is not installed.

    Needs: the role that owns the schema (the one that migrated).

    Examples:

      [bold]outrider uninstall --dsn postgresql://localhost/shop --dry-run[/]
      [bold]outrider uninstall --dsn postgresql://localhost/shop[/]
      [bold]outrider uninstall --schema events --force --yes --json[/]
    """
    schema, whole = target.schema, not keep_schema

    async def work(conn: AsyncSession) -> None:
        answer = {"schema": schema, "database": conn.info.dbname, "dry_run": dry_run}
        show = _Answer(answer, as_json=target.as_json)
        found = await survey(conn, schema, whole=whole)
        if found is None:
            show.nothing()
            return
        reasons = found.refusals(schema, force=force, whole=whole)
        if dry_run or not target.as_json:
            show.survey(found, reasons)
        if dry_run:
            return
        try:
            refuse(found, schema, force=force, whole=whole)
            if not yes:
                _confirm(schema)
            lost = await remove(conn, schema, force=force, whole=whole)
        except UninstallRefused as error:
            if target.as_json:
                show.survey(found, reasons or [str(error)])
            raise
        if lost is None:  # somebody else was faster
            show.nothing()
        else:
            show.dropped(lost)

    target.run(work, migrated=False)


def _confirm(schema: str) -> None:
    if not sys.stdin.isatty():
        raise UninstallRefused("nothing was dropped: there is no terminal to ask at; to do it, add --yes")
    question = f'Type "{schema}" to drop it for good'
    if (typed := typer.prompt(question, err=True, default="", show_default=False)) != schema:
        raise UninstallRefused(f'nothing was dropped: you typed "{typed}", and the schema is "{schema}"')


class _Answer:
    """What is printed: one JSON object, or sentences and a table."""

    def __init__(self, known: dict[str, Any], *, as_json: bool) -> None:
        self._known = known
        self._json = as_json

    def nothing(self) -> None:
        if self._json:
            print_json(**self._known, installed=False, dropped=False)
        else:
            tell(f'nothing to do: Outrider is not installed in the schema "{self._known["schema"]}" of this database')

    def survey(self, found: Survey, reasons: list[str]) -> None:
        if self._json:
            print_json(**self._known, installed=True, dropped=False, refused=reasons, **asdict(found))
            return
        tell('schema "{schema}" in database "{database}"'.format(**self._known) + f", version {found.version}")
        tell(f"  events in the log: {found.events}; receipts of handled events: {found.receipts}")
        if found.publishing:
            tell(f"  open transactions that may have published or enqueued more: {found.publishing}")
        for name in found.mentions:
            tell(f"  stays, but names the schema and may fail from then on: {name}")
        if found.subscriptions:
            table = Table("subscription", "unread", "waiting", "dead")
            for each in found.subscriptions:
                row = (one_line(each.name), str(each.unread), str(each.waiting), str(each.dead))
                table.add_row(*map(Text, row), style="yellow" if each else None)
            Console().print(table)
        for rollup in found.rollups:
            tell(f"  rollup: {rollup}")
        if self._known["dry_run"]:
            for reason in reasons:
                tell(f"would be refused: {reason}")
            tell("nothing was changed (dry run)")

    def dropped(self, lost: Survey) -> None:
        if self._json:
            print_json(**self._known, installed=True, dropped=True, refused=[], **asdict(lost))
            return
        owed = ", ".join(str(each) for each in (*lost.subscriptions, *lost.rollups) if each)
        tell('Outrider is removed from the schema "{schema}"'.format(**self._known) + f"; lost: {owed}" * bool(owed))
