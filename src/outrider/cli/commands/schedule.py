"""`outrider schedule`: when schedules fired last and fire next; pause and resume one, or run it now."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands
from outrider.cli.output.text import make_table, moment, one_line, print_json, roughly, tell
from outrider.cli.target import Target
from outrider.postgres.admin import schedules
from outrider.postgres.admin.schedules import Upcoming

commands = Commands(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]


@commands.command("list")
def show_all(target: Target) -> None:
    """Show every schedule: its times, its last job, and when it fires next.

    A schedule that is due and not fired within two minutes is in outrider doctor.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider schedule list[/]
    """
    now, found = target.run(lambda conn: schedules.listing(conn, target.schema))
    if target.as_json:
        told = [asdict(each.schedule) | {"next_at": each.next_at} for each in found]
        print_json(schema=target.schema, read_at=now, schedules=told)
        return
    if not found:
        typer.echo("no schedules")
        return
    table = make_table("schedule", "times", "job", "missed", "last job", "next")
    for each in found:
        one = each.schedule
        row = (
            one_line(one.name), f"{one_line(one.cron)}\n{one_line(one.time_zone)}", one_line(one.job_type),
            one_line(one.missed or "?"),
            "none yet" if one.enqueued_at is None else f"{roughly(now - one.enqueued_at)} ago", _next(each, now),
        )  # fmt: skip
        table.add_row(*map(Text, row), style="yellow" if one.paused_at else "")
    Console().print(table)


@commands.command()
def pause(target: Target, audit: AuditOptions, name: Name) -> None:
    """Stop a schedule.

    Jobs that it has enqueued run. Recorded in the audit.

    Needs: a role that may operate.

    Example: [bold]outrider schedule pause sales.daily --reason "the month is closed"[/]
    """
    since = target.run(lambda conn: schedules.pause(conn, name, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, schedule=name, paused_at=since)
    else:
        tell(f"{name} is paused; to resume: outrider schedule resume {name}")


@commands.command()
def resume(target: Target, audit: AuditOptions, name: Name) -> None:
    """Let a paused schedule fire again.

    The times of the pause get no job; with missed="all" each of them gets one.
    Recorded in the audit.

    Needs: a role that may operate.

    Example: [bold]outrider schedule resume sales.daily[/]
    """
    was = target.run(lambda conn: schedules.resume(conn, name, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, schedule=name, was_paused=was)
    else:
        tell(f"{name} is resumed" if was else f"{name} was not paused")


@commands.command("run-now")
def run_now(target: Target, audit: AuditOptions, name: Name) -> None:
    """Enqueue the job of a schedule now, beside its times.

    Also while it is paused. The job is the one that its code declared when it was
    last registered. Recorded in the audit.

    Needs: a role that may operate.

    Example: [bold]outrider schedule run-now sales.daily[/]
    """
    job_id = target.run(lambda conn: schedules.run_now(conn, name, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, schedule=name, job_id=job_id)
    else:
        tell(f"{name}: enqueued {job_id}")


def _next(each: Upcoming, now: datetime) -> str:
    if each.schedule.paused_at is not None:
        return f"paused since {moment(each.schedule.paused_at)}"
    return "?" if each.next_at is None else f"in {roughly(each.next_at - now)}\n{moment(each.next_at)}"
