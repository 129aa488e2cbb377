"""The options by which commands say which dead letters they mean."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from outrider.cli.options import OptionGroup
from outrider.errors import ConfigError
from outrider.postgres.admin.dead_letters import Filter
from outrider.retry import parse_duration

SubscriptionOption = Annotated[
    str | None, typer.Option("--subscription", metavar="NAME", help="Only dead letters of this subscription.")
]


@dataclass(frozen=True)
class DeadLetterOptions(OptionGroup):
    panel = "Which dead letters"

    subscription: SubscriptionOption = None
    event_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this event type.")] = None
    code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only this code of the last error.")] = None
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="HEX", help="Only this cause, as dlq list shows it.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Dead since then or later: 2026-07-31T09:30, or 2h for 2 h ago."),
    ] = None
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Dead before then.")] = None
    workspace: Annotated[str | None, typer.Option("--workspace", metavar="ID", help="Only this tenant.")] = None
    generation: Annotated[
        int | None, typer.Option("--generation", metavar="N", help="Only those for workers of this generation.")
    ] = None

    @property
    def filter(self) -> Filter:
        return Filter(
            subscription=self.subscription,
            event_type=self.event_type,
            code=self.code,
            fingerprint=self.fingerprint,
            since=moment_of("--since", self.since),
            until=moment_of("--until", self.until),
            workspace_id=self.workspace,
            generation=self.generation,
        )


@dataclass(frozen=True)
class ChosenDeadLetters(DeadLetterOptions):
    """For commands that change them: every dead letter only on request."""

    everything: Annotated[bool, typer.Option("--all", help="Every dead letter, without a filter.")] = False

    def check(self, event: UUID | None) -> Filter:
        which = self.filter
        if event is not None and (self.everything or which != Filter(subscription=which.subscription)):
            raise typer.BadParameter("give one event, or a filter: beside EVENT_ID only --subscription makes sense")
        if event is None and self.everything and which:
            raise typer.BadParameter("--all and a filter exclude each other: drop one of them")
        if event is None and not self.everything and not which:
            raise typer.BadParameter("name an event or give a filter; for every dead letter, --all")
        return which


def moment_of(option: str, given: str | None) -> datetime | timedelta | None:
    """A time without a zone is in the zone of this machine."""
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
