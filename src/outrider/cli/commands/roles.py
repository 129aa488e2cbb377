"""`outrider roles`: group roles with what each needs, made or printed."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from outrider.cli.bulk_actions import print_json
from outrider.cli.output.text import tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.postgres.admin import roles as making
from outrider.postgres.admin.roles import Made, Outcome
from outrider.postgres.statement import fetch


def roles(
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="What their names begin with. Else the schema's name and _."),
    ] = None,
    as_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead; no database is needed.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the roles that the schema is used with, each with the rights that it needs.

    producer, worker, relay, operator, dashboard, cron, upkeep: none can log in; make your
    logins members of them, as docs/roles.md says. What a role of them has in the schema
    is taken and granted anew, in one transaction: run it again after every upgrade.
    Nobody else's rights are touched. It says how many rights each has gained and lost;
    --json has them one by one, and the members of each role.

    Needs: the role that owns the schema, with CREATEROLE where a role is missing.

    Examples:

      [bold]outrider roles --dsn postgresql://localhost/shop[/]
      [bold]outrider roles --sql > roles.sql[/]
    """
    if as_json and as_sql:
        raise typer.BadParameter("--json and --sql exclude each other: drop one of them")
    place = find_place(Asked(app, dsn, embedded, schema))
    if as_sql:
        typer.echo(making.script(place.schema, prefix), nl=False)
        return
    done, members = asyncio.run(_make(place, prefix))
    if as_json:
        told = [asdict(each) | {"members": members.get(each.name, [])} for each in done.roles]
        print_json(schema=place.schema, **asdict(done) | {"roles": told})
        return
    for each in done.roles:
        tell(f"{each.name}: {_became(each)}")
        if each.granted and not each.created and (whose := members.get(each.name)):
            tell(
                f"note: {each.name} was there already, and what is granted to it its members have: {', '.join(whose)}",
                error=True,
            )
    for notice in done.notices:
        tell(f"note: {notice}", error=True)


async def _make(place: Place, prefix: str | None) -> tuple[Outcome, dict[str, list[str]]]:
    """Also who is a member of each."""
    async with place.connect() as conn:
        done = await making.make(conn, place.schema, prefix)
        rows = await fetch(conn, "admin/role_members", place.schema, {"roles": [each.name for each in done.roles]})
        return done, dict(rows)


def _became(each: Made) -> str:
    if each.created:
        return f"created, with {each.rights} rights"
    if not each.granted and not each.revoked:
        return f"unchanged, {each.rights} rights"
    changed = [f"{len(each.granted)} granted"] * bool(each.granted)
    changed += [f"{len(each.revoked)} revoked"] * bool(each.revoked)
    return f"{each.rights} rights, {', '.join(changed)}"
