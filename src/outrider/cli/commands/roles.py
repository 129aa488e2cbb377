"""`outrider roles`: group roles with the rights that each needs, created or printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from outrider.cli.options import Commands
from outrider.cli.output.text import print_json, tell
from outrider.cli.target import Target
from outrider.postgres.admin import roles as making
from outrider.postgres.admin.roles import Made, Outcome
from outrider.postgres.connection import AsyncSession
from outrider.postgres.statement import fetch

commands = Commands()


@commands.command()
def roles(
    target: Target,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="How their names begin. Default: the schema's name and _."),
    ] = None,
    as_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead; needs no database.")] = False,
) -> None:
    """Create database roles with only the rights that they need.

    producer, worker, relay, operator, dashboard, cron, upkeep: none can log in; make
    your logins members of them (docs/roles.md). All rights of these roles in the
    schema are revoked and granted again, in one transaction: run it again after every
    upgrade. Rights of other roles stay. It says how many rights each role has gained
    and lost; --json lists them, and the members of each role.

    Needs: the role that owns the schema, with CREATEROLE where a role is missing.

    Examples:

      [bold]outrider roles --dsn postgresql://localhost/shop[/]
      [bold]outrider roles --sql > roles.sql[/]
    """
    if target.as_json and as_sql:
        raise typer.BadParameter("--json and --sql exclude each other: drop one of them")
    if as_sql:
        typer.echo(making.script(target.schema, prefix), nl=False)
        return

    async def make(conn: AsyncSession) -> tuple[Outcome, dict[str, list[str]]]:
        done = await making.make(conn, target.schema, prefix)
        rows = await fetch(conn, "admin/role_members", target.schema, {"roles": [each.name for each in done.roles]})
        return done, dict(rows)

    done, members = target.run(make)
    if target.as_json:
        told = [asdict(each) | {"members": members.get(each.name, [])} for each in done.roles]
        print_json(schema=target.schema, **asdict(done) | {"roles": told})
        return
    for each in done.roles:
        tell(f"{each.name}: {_became(each)}")
        if each.granted and not each.created and (whose := members.get(each.name)):
            tell(f"note: {each.name} existed; its members have the granted rights too: {', '.join(whose)}", error=True)
    for notice in done.notices:
        tell(f"note: {notice}", error=True)


def _became(each: Made) -> str:
    if each.created:
        return f"created, with {each.rights} rights"
    if not each.granted and not each.revoked:
        return f"unchanged, {each.rights} rights"
    changed = [f"{len(each.granted)} granted"] * bool(each.granted)
    changed += [f"{len(each.revoked)} revoked"] * bool(each.revoked)
    return f"{each.rights} rights, {', '.join(changed)}"
