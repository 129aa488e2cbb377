"""The options by which commands say which dead letters they mean."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from outrider.errors import ConfigError
from outrider.postgres.admin.dead_letters import Filter
from outrider.retry import Duration, parse_duration

Subscription = Annotated[
    str | None, typer.Option("--subscription", metavar="NAME", help="Only dead letters of this subscription.")
]
EventType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Their event type.")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="The code of their last error.")]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", metavar="HEX", help="One cause, as `dlq list` shows it.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Buried then or later: 2026-07-31T09:30, or 2h ago as 2h.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Buried before that.")]
Workspace = Annotated[str | None, typer.Option("--workspace", metavar="ID", help="The tenant of their events.")]
Generation = Annotated[int | None, typer.Option("--generation", metavar="N", help="Whose workers they wait for.")]
Everything = Annotated[bool, typer.Option("--all", help="Every dead letter there is: no filter.")]


def filter_of(
    subscription: str | None,
    event_type: str | None,
    code: str | None,
    fingerprint: str | None,
    since: str | None,
    until: str | None,
    workspace: str | None,
    generation: int | None,
) -> Filter:
    return Filter(
        subscription=subscription,
        event_type=event_type,
        code=code,
        fingerprint=fingerprint,
        since=moment_of("--since", since),
        until=moment_of("--until", until),
        workspace_id=workspace,
        generation=generation,
    )


def moment_of(option: str, given: str | None) -> datetime | Duration | None:
    """A time without a zone is one of this machine's."""
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return parse_duration(given)
    except ConfigError:
        raise typer.BadParameter(
            f"{option}: {given!r} is neither a time, like 2026-07-31T09:30, nor a duration, like 30m, 2h or 1d"
        ) from None


def refuse_unclear(event: UUID | None, which: Filter, *, everything: bool) -> None:
    if event is not None and (everything or which != Filter(subscription=which.subscription)):
        raise typer.BadParameter("one event, or a filter: beside EVENT_ID only --subscription makes sense")
    if event is None and everything and which:
        raise typer.BadParameter("--all and a filter exclude each other: drop one of them")
    if event is None and not everything and not which:
        raise typer.BadParameter("name an event or give a filter; for every dead letter there is, --all")
