"""Replays the dead letters of one event, unchanged or with another payload."""

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
"""A payload that replaces the event's own for the handler. A str is JSON text."""


@dataclass(frozen=True, slots=True)
class Replayed:
    subscription: str | None
    """None if the event is not a dead letter anywhere."""
    outcome: Literal["replayed", "skipped_handled", "superseded", "erased", "not_found"]
    """skipped_handled: its idempotency key has been handled. superseded: another job has its unique key, or an
    open transaction is enqueuing one. erased: its payload was erased. not_found: it is neither a dead letter nor
    handled there."""


class ReplayOptions(TypedDict, total=False):
    subscription: str | None
    """Replay it only here. Default: in every subscription where it is a dead letter."""
    by: str | None
    """Who asked for it, for the failure history. Default: the database role."""
    reason: str | None
    """Why, for the audit."""
    force: bool
    """Replay it even if it was handled or discarded; needs `subscription`. The deleted receipt is kept in the audit."""
    generation: int | None
    """Replay it for the workers of this generation."""
    payload: Payload | None
    """Replaces the payload for the handler. The payload in the log stays."""


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
    """A new payload is refused if the event classes of `declared` cannot decode it."""
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
    """Raises ReplayRefused if the event class of a letter's subscription cannot decode the new payload."""
    models = {(known.name, spec_of(model).type): model for known in declared for model in known.events}
    for each in letters:
        if (model := models.get((each.subscription, each.event_type))) is not None:
            try:
                each.envelope(text).decode(model)
            except Undecodable as error:
                raise ReplayRefused(f"nothing was replayed: with the new payload, {error}") from error


def json_of(payload: Payload) -> str:
    """The payload as JSON text, checked. A str is passed on unchanged, so that no number is rounded."""
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
        raise ReplayRefused("nothing was replayed: the new payload is not a JSON object")
    if "\\u0000" in text.replace("\\\\", ""):
        raise ReplayRefused("nothing was replayed: the new payload contains \\u0000, which Postgres cannot store")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
