"""What pages read from addresses and forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outrider.dashboard.access import User
from outrider.dashboard.runs import Action, Run
from outrider.errors import ConfigError
from outrider.retry import parse_duration

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LONGEST_REASON = 2000


def uuid_of(text: str) -> UUID:
    try:
        return UUID(text.strip())
    except ValueError:
        raise HTTPException(404, "This is not the id of an event or a job: such an id is a UUID.") from None


def wanted(request: Request, name: str) -> str | None:
    """A field of the address; None if it is empty."""
    return request.query_params.get(name, "").strip() or None


def counted(request: Request) -> dict[str, str]:
    """The filter that a preview has counted. It is in one field, URL-encoded, because browsers change other values."""
    query: str | None = request.state.form.get("query")
    if query is None or "%00" in query:
        raise ConfigError("a form says in its field query what its preview has counted")
    return dict(parse_qsl(query))


def position(request: Request, name: str) -> int | None:
    text = wanted(request, name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ConfigError(f"{name}: {text:.30} is not a position")
    return None if text is None else int(text)


def number_of(text: str) -> int | None:
    """What a preview has put into its form; None if it could not say."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def time_of(request: Request, name: str) -> datetime | timedelta | None:
    """A time, in UTC unless it has an offset, or how long ago it was."""
    if (text := wanted(request, name)) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except ConfigError:
        raise ConfigError(
            f"{name}: {text:.30} is neither a time, like 2026-11-18 10:00, nor a duration, like 2h"
        ) from None


def need(board: Dashboard, request: Request, action: str) -> User:
    """The user, if actions are enabled and this one is allowed."""
    user: User = request.state.user
    if not board.access.actions:
        raise HTTPException(403, "This dashboard is read-only: start it with --enable-actions.")
    if not board.access.may(user, action):
        raise HTTPException(403, f"{user.name} may not {action.replace('_', ' ')}.")
    return user


def reason_of(request: Request) -> str:
    reason: str = request.state.form.get("reason", "").strip()
    if not reason:
        raise ConfigError("Say why: the audit keeps the reason, for whoever asks later.")
    return reason[:LONGEST_REASON]


async def begin(board: Dashboard, request: Request, run: Run, action: Action) -> Response:
    """Starts an action, and leads to its page."""
    await board.runs.start(run, action)
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{run.id}", 303)
