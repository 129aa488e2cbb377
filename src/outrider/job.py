"""`Job`: a command to run later, a frozen pydantic model that is declared with a type."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import Declared, check_key, wrong_declaration
from outrider.registry import EventSpec, Registry, Statement, Upcaster

jobs: Registry[Job] = Registry()


class Job(Declared):
    """Something to do outside of a transaction, by any worker that has code for it.

        class SendReceipt(Job, type="mail.send_receipt"):
            order_id: UUID

    `key` names the field that `@app.job(key_concurrency=...)` counts by. `version` and `upcasters` convert older payloads,
    as for events.
    """

    def __init_subclass__(
        cls,
        *,
        type: str | None = None,
        version: int = 1,
        key: str | None = None,
        upcasters: Mapping[int, Upcaster] | None = None,
        **options: Any,
    ) -> None:
        if options:
            raise DeclarationError(
                f"{cls.__name__}: Job has no option {', '.join(options)}; it has type, version, key, upcasters"
            )
        super().__init_subclass__()
        cls.__outrider__ = None
        if type is None:
            if version != 1 or key is not None or upcasters is not None:
                raise DeclarationError(f"{cls.__name__}: version=, key= and upcasters= need a type=")
            return
        # A job type is also the name of its subscription.
        if wrong := wrong_declaration("job", type, names.IDENTIFIER_BYTES, version, upcasters):
            raise DeclarationError(f"{cls.__name__}: {wrong}")
        ordered = dict(sorted((upcasters or {}).items()))
        cls.__outrider__ = EventSpec(type=type, version=version, key=key, foreign=False, upcasters=ordered)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if cls.__outrider__ is not None:
            check_key(cls, cls.__outrider__)
            jobs.add(cls.__outrider__, cls, Statement.of(cls))


@dataclass(frozen=True, slots=True)
class JobRun:
    """One attempt at one job. In signals, a "superseded" job gave way to a newer one with the same unique key."""

    subscription: str
    job_id: UUID
    key: str | None
    attempt: int
    worker: str
    workspace_id: str | None = None
    trace_id: str | None = None
    context: Context | None = field(default=None, repr=False, compare=False)
