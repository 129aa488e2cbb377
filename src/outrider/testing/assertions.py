"""Captures published events and enqueued jobs, and assertions on them.

A failure shows what was found instead, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from outrider.app import Outrider
from outrider.envelope import E, Envelope
from outrider.errors import Undecodable
from outrider.event import Event, spec_of
from outrider.integrations.connections import under, under_sync
from outrider.job import Job
from outrider.job import jobs as job_registry
from outrider.postgres import uncommitted
from outrider.postgres.log import envelope_of
from outrider.registry import Registry, registry
from outrider.signals import JobEnqueued, Published, Signal

J = TypeVar("J", bound=Job)
SHOWN = 20
WIDTH = 120


class Expectation(TypedDict, Generic[E], total=False):
    key: object
    """The ordering key; of a job, its key."""
    fields: Mapping[str, object]
    """Fields of the event or job and their values; the others may have any."""
    where: Callable[[E], object]
    """A condition that must be true of it."""
    times: int | None
    """The exact number, by default 1; None = at least one; 0 = none."""


def assert_published(
    published: Captured | Iterable[Envelope], model: type[E], **expected: Unpack[Expectation[E]]
) -> list[E]:
    """Fail unless `capture` collected such an event; returns those that fit.

    `assert_published(published, OrderPlaced, key="7", fields={"total": 9}, where=lambda e: e.lines, times=1)`.
    """
    __tracebackhide__ = True
    if isinstance(published, Captured):
        return _check(published.envelopes, model, expected, published.elsewhere)
    return _check(list(published), model, expected)


def assert_enqueued(
    enqueued: Captured | Iterable[Envelope], model: type[J], **expected: Unpack[Expectation[J]]
) -> list[J]:
    """The same for jobs: `assert_enqueued(captured, SendReceipt, fields={"order_id": "7"})`."""
    __tracebackhide__ = True
    if isinstance(enqueued, Captured):
        return _check(enqueued.enqueued, model, expected, enqueued.elsewhere_jobs, verb="enqueued")
    return _check(list(enqueued), model, expected, verb="enqueued")


async def assert_published_in(
    conn: object, model: type[E], *, schema: str = "outrider", **expected: Unpack[Expectation[E]]
) -> list[E]:
    """The same for events in the open transaction of `conn`, published by the app, by triggers or in SQL.

    Events of a savepoint that was rolled back do not count.
    """
    __tracebackhide__ = True
    rows = await uncommitted.read(uncommitted.checked(await under(conn), "assert_published_in"), schema)
    return _check([envelope_of(row) for row in rows], model, expected)


def assert_published_in_sync(
    conn: object, model: type[E], *, schema: str = "outrider", **expected: Unpack[Expectation[E]]
) -> list[E]:
    """The same on a blocking connection."""
    __tracebackhide__ = True
    rows = uncommitted.read_sync(uncommitted.checked_sync(under_sync(conn), "assert_published_in_sync"), schema)
    return _check([envelope_of(row) for row in rows], model, expected)


async def assert_enqueued_in(
    conn: object, model: type[J], *, schema: str = "outrider", **expected: Unpack[Expectation[J]]
) -> list[J]:
    """Fail unless such a job was enqueued in the open transaction of `conn`; returns those that fit.

    Where a unique key met another job: a job that replaced it counts, a job that was dropped does not. Jobs of events do
    not count.
    """
    __tracebackhide__ = True
    rows = await uncommitted.read_jobs(uncommitted.checked(await under(conn), "assert_enqueued_in"), schema)
    return _check([envelope_of(row) for row in rows], model, expected, verb="enqueued")


def assert_enqueued_in_sync(
    conn: object, model: type[J], *, schema: str = "outrider", **expected: Unpack[Expectation[J]]
) -> list[J]:
    """The same on a blocking connection."""
    __tracebackhide__ = True
    rows = uncommitted.read_jobs_sync(uncommitted.checked_sync(under_sync(conn), "assert_enqueued_in_sync"), schema)
    return _check([envelope_of(row) for row in rows], model, expected, verb="enqueued")


@dataclass(frozen=True, slots=True)
class _Candidate(Generic[E]):
    envelope: Envelope
    event: E | None
    differences: Sequence[str]

    def __str__(self) -> str:
        envelope = self.envelope
        number = "" if envelope.seq is None else f", number {envelope.seq}"
        text = f"{envelope.event_type}{number}, key {envelope.key!r}"
        if self.event is None and not self.differences:
            return text
        return f"{text}: {'; '.join(self.differences) or 'fits'}"


def _check(
    envelopes: Sequence[Envelope], model: type[E], expected: Expectation[E], elsewhere: int = 0, verb: str = "published"
) -> list[E]:
    __tracebackhide__ = True
    if issubclass(model, Job) is not (verb == "enqueued"):
        what, use = ("a job", "assert_enqueued") if issubclass(model, Job) else ("an event", "assert_published")
        raise TypeError(f"{model.__name__} is {what}: use {use}")
    _refuse_unknown(model, expected)
    candidates = [_compare(envelope, model, expected) for envelope in envelopes]
    fitting = [each.event for each in candidates if each.event is not None and not each.differences]
    times = expected.get("times", 1)
    if len(fitting) == times or (times is None and fitting):
        return fitting
    raise AssertionError(_explain(model, expected, times, len(fitting), candidates, elsewhere, verb))


def _compare(envelope: Envelope, model: type[E], expected: Expectation[E]) -> _Candidate[E]:
    if envelope.event_type != spec_of(model).type:
        return _Candidate(envelope, None, ())
    try:
        event = envelope.decode(model)
    except Undecodable as error:
        return _Candidate(envelope, None, [str(error)])
    differences = []
    if "key" in expected and envelope.key != (wanted := _as_key(expected["key"])):
        differences.append(f"key is {envelope.key!r}, wanted {wanted!r}")
    for name, value in expected.get("fields", {}).items():
        found = getattr(event, name)
        if found != value:
            differences.append(f"{name} is {_short(found)}, wanted {_short(value)}")
    if not differences and "where" in expected and not expected["where"](event):
        differences.append(f"where() is not true of {_short(event)}")
    return _Candidate(envelope, event, differences)


def _refuse_unknown(model: type[E], expected: Expectation[E]) -> None:
    """A misspelt name must not pass as "was not published"."""
    if unknown := expected.keys() - Expectation.__annotations__.keys():
        raise TypeError(
            f"an expectation has no {', '.join(sorted(unknown))}; it has {', '.join(Expectation.__annotations__)}"
        )
    if strange := [name for name in expected.get("fields", {}) if name not in model.model_fields]:
        raise TypeError(
            f"{model.__name__} has no field {', '.join(map(repr, strange))}; it has {', '.join(model.model_fields)}"
        )


def _as_key(value: object) -> str | None:
    value = value.value if isinstance(value, Enum) else value
    return None if value is None else str(value)


def _explain(
    model: type[Any],
    expected: Expectation[Any],
    times: int | None,
    found: int,
    candidates: Sequence[_Candidate[Any]],
    elsewhere: int,
    verb: str,
) -> str:
    wanted = [f"{name}={_short(value)}" for name, value in expected.get("fields", {}).items()]
    if "key" in expected:
        wanted.insert(0, f"key {_as_key(expected['key'])!r}")
    if "where" in expected:
        wanted.append("where(...)")
    described = f"{model.__name__} ({spec_of(model).type})" + (f" with {', '.join(wanted)}" if wanted else "")
    asked = "at least once" if times is None else _times(times)
    lines = [f"{described}: wanted {asked}, {verb} {_times(found)}"]
    near = sorted(candidates, key=lambda each: each.event is None and not each.differences)
    lines += [f"{verb} were:" if candidates else f"nothing was {verb}", *(f"  {each}" for each in near[:SHOWN])]
    if len(near) > SHOWN:
        lines.append(f"  and {len(near) - SHOWN} more")
    if elsewhere:
        lines.append(
            f"{elsewhere} more were {verb} meanwhile, but not by this block: by threads, workers or tasks that it did "
            "not start; capture(app, everywhere=True) sees them too"
        )
    return "\n".join(lines)


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}…"


class Captured:
    """The published events and enqueued jobs, in order. It grows while the block runs."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        """Of events."""
        self.enqueued: list[Envelope] = []
        """Of jobs, without those that a unique key kept from being enqueued."""
        self.elsewhere = 0
        """How many events the app published meanwhile outside of the block."""
        self.elsewhere_jobs = 0
        """How many jobs the app enqueued meanwhile outside of the block."""

    @property
    def events(self) -> list[Event]:
        return [_decoded(envelope, registry) for envelope in self.envelopes]

    @property
    def jobs(self) -> list[Job]:
        return [_decoded(envelope, job_registry) for envelope in self.enqueued]

    def of(self, model: type[E]) -> list[E]:
        """Those of one type, events or jobs, as `model` sees them."""
        wanted = spec_of(model).type
        found = self.enqueued if issubclass(model, Job) else self.envelopes
        return [envelope.decode(model) for envelope in found if envelope.event_type == wanted]


_open: ContextVar[frozenset[Captured]] = ContextVar("outrider_captures", default=frozenset())


@contextmanager
def capture(app: Outrider, *, everywhere: bool = False) -> Iterator[Captured]:
    """Collect what this block publishes and enqueues through the app: `with capture(app) as published:`, also in async code.

    Seen: publishes of the block itself, of the tasks that it starts and of `asyncio.to_thread`; also those that are
    rolled back later. Not seen: what other tasks and tests publish at the same time, threads and workers that the block
    did not start as above, other processes, and publishes in SQL. `everywhere=True` sees all that this app publishes
    in this process, whoever does it.
    """
    captured = Captured()

    def hear(signal: Signal) -> None:
        mine = everywhere or captured in _open.get()
        match signal:
            case Published(envelope) if mine:
                captured.envelopes.append(envelope)
            case Published():
                captured.elsewhere += 1
            case JobEnqueued(outcome="kept"):
                pass
            case JobEnqueued(details=details) if mine:
                captured.enqueued.append(details())
            case JobEnqueued():
                captured.elsewhere_jobs += 1

    stop = app.signals.listen(hear)
    _open.set(_open.get() | {captured})
    try:
        yield captured
    finally:
        stop()
        _open.set(_open.get() - {captured})


def _decoded(envelope: Envelope, known: Registry[E]) -> E:
    model = known.owned(envelope.event_type, envelope.event_version)
    if model is None:
        raise Undecodable(f"{envelope} has no class in this process: use the envelopes")
    return envelope.decode(model)
