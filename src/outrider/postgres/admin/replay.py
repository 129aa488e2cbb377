"""The dead letters of one event go back into their line, as they are or with another payload."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypedDict
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from outrider.errors import ReplayRefused, Undecodable
from outrider.event import Event, spec_of
from outrider.postgres.admin.dead_letters import WholeLetter, letter
from outrider.postgres.statement import fetch_call
from outrider.subscription import Subscription

HELD = "a worker has held its partition for 10 s: try again when its batch is finished"
Payload = Mapping[str, Any] | Event | str
"""What a handler gets instead of the event's own; a text is JSON."""


@dataclass(frozen=True, slots=True)
class Replayed:
    subscription: str | None
    """None where the event is nobody's dead letter."""
    outcome: Literal["replayed", "skipped_handled", "superseded", "erased", "not_found"]
    """skipped_handled: its idempotency key has been handled. superseded: a job whose unique key another pending job has.
    erased: its payload is gone, and nobody can handle it. not_found: it is neither a dead letter nor handled there."""


class ReplayOptions(TypedDict, total=False):
    subscription: str | None
    """The only one that shall handle it again. Default: every one that buried it."""
    by: str | None
    """Who wants it; kept in its failure history. Default: the database role."""
    reason: str | None
    """Why; kept in the audit."""
    force: bool
    """Also when it was handled or discarded; name the subscription. Its receipt goes into the audit."""
    generation: int | None
    """Let the workers of that generation handle it."""
    payload: Payload | None
    """What its handler gets instead of the event's own payload, which stays in the log."""


async def replay(
    conn: AsyncConnection[Any],
    event_id: UUID,
    schema: str,
    declared: Iterable[Subscription] = (),
    *,
    subscription: str | None = None,
    by: str | None = None,
    reason: str | None = None,
    force: bool = False,
    generation: int | None = None,
    payload: Payload | None = None,
) -> list[Replayed]:
    """`declared`: what the code knows; a new payload that their classes cannot decode is refused."""
    if not isinstance(event_id, UUID):
        raise TypeError(f"replay takes the id of an event, a UUID, not {type(event_id).__name__}")
    text = None if payload is None else json_of(payload)
    if text is not None:
        refuse_unfit(await letter(conn, event_id, subscription, schema), text, declared)
    params = {
        "event_id": event_id,
        "subscription": subscription,
        "replayed_by": by,
        "reason": reason,
        "force": force,
        "new_generation": generation,
        "payload": text,
    }
    try:
        return [Replayed(*row) for row in await fetch_call(conn, "outbox_replay", schema, params)]
    except psycopg.errors.LockNotAvailable as error:
        raise ReplayRefused(f"nothing was replayed: {HELD}") from error


def refuse_unfit(letters: Iterable[WholeLetter], text: str, declared: Iterable[Subscription]) -> None:
    """ReplayRefused when a class that the code has for one of them cannot decode the new payload."""
    models = {(known.name, spec_of(model).type): model for known in declared for model in known.events}
    for each in letters:
        if (model := models.get((each.subscription, each.event_type))) is not None:
            try:
                each.envelope(text).decode(model)
            except Undecodable as error:
                raise ReplayRefused(f"nothing was replayed: with the new payload, {error}") from error


def json_of(payload: Payload) -> str:
    """JSON text of an object that Postgres can store; a text is passed on as it is, so that no number is rounded."""
    try:
        if isinstance(payload, str):
            text, value = payload, json.loads(payload, parse_constant=_refuse_constant)
        else:
            value = payload.model_dump(mode="json", by_alias=True) if isinstance(payload, Event) else dict(payload)
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ReplayRefused(f"nothing was replayed: the new payload is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ReplayRefused("nothing was replayed: the new payload is not a JSON object, like an event's own is")
    if "\\u0000" in text.replace("\\\\", ""):
        raise ReplayRefused("nothing was replayed: the new payload contains \\u0000, which Postgres cannot store")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
