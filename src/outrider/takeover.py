"""A takeover: which columns of an existing outbox or job table become an event or a job, and which rows are still owed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, TypedDict

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import spec_of
from outrider.job import Job
from outrider.options import Declaration, option, optional, text

MOST_SQL = 2000
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z")
_expression = text(MOST_SQL)


class TakeoverOptions(TypedDict, total=False):
    """The keyword arguments of app.takeover. `Takeover` explains them."""

    id: str
    type: str | None
    job: type[Job] | None
    payload: str
    owed: str
    done: str
    free: str
    key: str | None
    workspace_id: str | None
    occurred_at: str | None
    priority: str | None
    run_at: str | None
    order: str | None


def _plain(whose: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not _PLAIN.match(value):
        raise DeclarationError(f"{whose}: {name}={value!r:.60} is not the name of a column")
    return value


def _job(whose: str, name: str, value: Any) -> type[Job]:
    if not isinstance(value, type) or not issubclass(value, Job):
        raise DeclarationError(f"{whose}: {name}={value!r:.60} is not a Job class")
    spec_of(value)
    return value


@dataclass(frozen=True, kw_only=True)
class Takeover(Declaration):
    """`name` is the table. All texts but `id` are SQL over its columns; functions in them need their schema."""

    kind: ClassVar = "a takeover"

    id: str = option("id", _plain)
    """The column that identifies a row. It becomes the idempotency key of its event."""
    job: type[Job] | None = option(None, optional(_job))
    """Instead of `type`: the rows are jobs of this class."""
    type: str | None = option(None, optional(_expression))
    """The type of the event."""
    payload: str = option("payload", _expression)
    """The payload, as JSON."""
    owed: str = option("published_at is null", _expression)
    """A condition: the row is still to be dispatched."""
    done: str = option("published_at = now()", _expression)
    """Assignments that tell the old dispatcher that it has nothing to do with the row any more."""
    free: str = option("true", _expression)
    """A condition: no worker of the old system has the row now. For tables with leases."""
    key: str | None = option(None, optional(_expression))
    """The ordering key of the event, or the key of the job."""
    workspace_id: str | None = option(None, optional(_expression))
    """The tenant."""
    occurred_at: str | None = option(None, optional(_expression))
    """When it happened; for events."""
    priority: str | None = option(None, optional(_expression))
    """The priority of the job."""
    run_at: str | None = option(None, optional(_expression))
    """The earliest time to run the job."""
    order: str | None = option(None, optional(_expression))
    """In which order owed rows are brought. Default: by `id`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.name.split(".")
        if len(parts) != 2 or not all(_PLAIN.match(part) for part in parts):
            raise DeclarationError(f"takeover: {self.name!r:.200} is not like 'public.orders_outbox'")
        if (self.type is None) == (self.job is None):
            raise DeclarationError(f"{self.name}: give either type= (rows are events) or job= (rows are jobs)")
        wrong = ("priority", "run_at") if self.job is None else ("occurred_at",)
        if given := [each for each in wrong if getattr(self, each) is not None]:
            raise DeclarationError(
                f"{self.name}: {', '.join(given)} is not for {'events' if self.job is None else 'jobs'}"
            )

    @property
    def slug(self) -> str:
        """A name for what is created for it in Outrider's schema."""
        digest = sha256(self.name.encode()).hexdigest()[:8]
        return f"takeover_{self.name.replace('.', '_')[: names.IDENTIFIER_BYTES - 24]}_{digest}"
