"""What a rollup is: what is staged of a table or of events, by which key it is grouped, and what it becomes. Values only.

SQL in it is the declaring team's own: it is checked by the preflight, and runs with the rights of whoever installs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import Event, spec_of
from outrider.retry import Duration, option_duration
from outrider.subscription import Subscription

Scheduler = Literal["auto", "pg_cron", "worker"]
OF_A_GROUP = ("key", "piece_count", "first_at", "last_at")
"""The fields that every rollup event has."""
MOST_CARRIED = 40
_NAME = r'("([^"\x00]|""){1,63}"|[a-z_][a-z0-9_$]{0,62})'
_TABLE = re.compile(rf"{_NAME}(\.{_NAME})?\Z")


@dataclass(frozen=True, slots=True)
class Notification:
    """A table of yours that gets a row for each event, in the same transaction; what is there already is skipped.

    `columns` maps each of its columns to SQL over event_type, event_id, workspace_id, key, piece_count, payload,
    idempotency_key and occurred_at.
    """

    table: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that install adds to a table of yours, if it is missing."""

    table: str
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint of yours that install replaces, for it to allow the new event types. Uninstall gives it back."""

    table: str
    name: str
    check: str


class RollupOptions(TypedDict, total=False):
    when: str | None
    """SQL over `new`: only such rows are staged. Default: all."""
    carry: Sequence[str]
    """The columns, or fields of the payload, that go into the events; nothing else does. Default: none."""
    debounce: Duration
    """A group is due when its newest row is older than this: 60 to 300 s. Default 90 s."""
    threshold: int
    """Rows of a group that become one event, 2 to 50; fewer become an event each. Default 2."""
    max_wait: Duration
    """A group is due, too, when its oldest row is older than this. Default 10 min."""
    every: Duration
    """How often to look. Default 2 min."""
    workspace: str | None
    """SQL over `new`: the tenant. Default: app.workspace_id of the session that inserts; the event's own."""
    notify: Notification | None
    columns: Sequence[Column]
    checks: Sequence[Check]
    scheduler: Scheduler
    """Who ticks: "auto" (the default): pg_cron where it is installed, else the workers of this app; "pg_cron"; "worker"."""


@dataclass(frozen=True, slots=True)
class Rollup:
    name: str
    context: str
    table: str | None
    events: tuple[type[Event], ...]
    key: str | tuple[str, ...]
    single: tuple[str, int]
    """The event type and its version."""
    rollup: tuple[str, int]
    carry: tuple[str, ...] = ()
    when: str | None = None
    workspace: str | None = None
    debounce: int = 90
    threshold: int = 2
    max_wait: int = 600
    every: float = 120.0
    notify: Notification | None = None
    columns: tuple[Column, ...] = ()
    checks: tuple[Check, ...] = ()
    scheduler: Scheduler = "auto"

    @property
    def subscription(self) -> Subscription | None:
        """Of the handler that stages its events; None for a table, whose trigger does it."""
        return Subscription(self.name, "handler", self.context, self.events, order="none") if self.events else None

    @property
    def slug(self) -> str:
        return self.name.replace(".", "_")

    def spec(self) -> dict[str, Any]:
        """As the SQL functions take it."""
        spec: dict[str, Any] = {
            "name": self.name,
            "context": self.context,
            "table": self.table,
            "events": sorted(spec_of(each).type for each in self.events) or None,
            "when": self.when,
            "key": self.key if isinstance(self.key, str) else list(self.key),
            "carry": list(self.carry),
            "workspace": self.workspace,
            "single": self.single[0],
            "single_version": self.single[1],
            "rollup": self.rollup[0],
            "rollup_version": self.rollup[1],
            "debounce": self.debounce,
            "threshold": self.threshold,
            "max_wait": self.max_wait,
            "every": self.every,
            "scheduler": self.scheduler,
            "columns": [{"table": each.table, "name": each.name, "type": each.type} for each in self.columns],
            "checks": [{"table": each.table, "name": each.name, "check": each.check} for each in self.checks],
        }
        if self.notify is not None:
            spec["notify"] = {"table": self.notify.table, "columns": dict(self.notify.columns)}
        return spec


def declare_rollup(
    context: str,
    name: str,
    table: str | None,
    events: tuple[type[Event], ...],
    key: str | Sequence[str],
    single: type[Event] | str,
    rollup: type[Event] | str,
    options: RollupOptions,
) -> Rollup:
    if wrong := names.unknown_option("a rollup", options, RollupOptions.__annotations__):
        raise TypeError(wrong)
    if wrong := names.wrong_dotted(name, 63 - len("outrider_rollup_")):
        raise DeclarationError(f"the name of the rollup {wrong}")
    if (table is None) == (not events):
        raise DeclarationError(f"{name}: a rollup is on a table, table='orders', or on events, events=[OrderPlaced]")
    carry = _names(name, "carry", options.get("carry", ()))
    if len(carry) > MOST_CARRIED:
        raise DeclarationError(f"{name}: carry names {len(carry)} columns, at most {MOST_CARRIED} can be carried")
    if taken := set(carry) & set(OF_A_GROUP):
        raise DeclarationError(
            f"{name}: carry={sorted(taken)} would hide what every rollup event has: {', '.join(OF_A_GROUP)}"
        )
    emitted = [_type_of(name, what, given) for what, given in (("single", single), ("rollup", rollup))]
    _needs_no_more(name, single, set(carry), "the carried columns")
    _needs_no_more(
        name, rollup, {*OF_A_GROUP}, "key, piece_count, first_at and last_at; carried columns may be missing"
    )
    if {type_ for type_, _ in emitted} & {spec_of(event).type for event in events}:
        raise DeclarationError(f"{name}: it would emit what it stages, again and again: emit other event types")
    scheduler = options.get("scheduler", "auto")
    if scheduler not in get_args(Scheduler):
        raise DeclarationError(f"{name}: scheduler={scheduler!r} is none of {', '.join(get_args(Scheduler))}")
    threshold = options.get("threshold", 2)
    if type(threshold) is not int or not 2 <= threshold <= 50:
        raise DeclarationError(f"{name}: threshold={threshold!r} is not a whole number from 2 to 50")
    notify = options.get("notify")
    if notify is not None:
        if not notify.columns:
            raise DeclarationError(f"{name}: notify has no columns to fill")
        notify = Notification(_table(name, notify.table), dict(notify.columns))
        if table is not None and notify.table == _table(name, table):
            raise DeclarationError(
                f"{name}: notify would fill the table that it stages, again and again: name another table"
            )
    debounce = _seconds(name, "debounce", options.get("debounce", 90), 60, 300)
    max_wait = _seconds(name, "max_wait", options.get("max_wait", 600), 60, 86_400)
    if max_wait < debounce:
        raise DeclarationError(
            f"{name}: max_wait={max_wait} s is shorter than debounce={debounce} s: it must be at least as long"
        )
    return Rollup(
        name=name,
        context=context,
        table=None if table is None else _table(name, table),
        events=events,
        key=_sql(name, "key", key) if isinstance(key, str) else _names(name, "key", key) or _no_key(name),
        single=emitted[0],
        rollup=emitted[1],
        carry=carry,
        when=_sql(name, "when", options.get("when")),
        workspace=_sql(name, "workspace", options.get("workspace")),
        debounce=debounce,
        threshold=threshold,
        max_wait=max_wait,
        every=_seconds(name, "every", options.get("every", 120), 10, 3600),
        notify=notify,
        columns=tuple(
            Column(_table(name, each.table), *_names(name, "columns", (each.name, each.type)))
            for each in options.get("columns", ())
        ),
        checks=tuple(
            Check(_table(name, each.table), _names(name, "checks", (each.name,))[0], _sql(name, "checks:", each.check))
            for each in options.get("checks", ())
        ),
        scheduler=scheduler,
    )


def _table(name: str, table: str) -> str:
    if not isinstance(table, str) or not (found := _TABLE.match(table)):
        raise DeclarationError(f"{name}: {table!r:.80} is no name of a table: write it like public.orders")
    return table if found[3] else f"public.{table}"


def _names(name: str, option: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise DeclarationError(f"{name}: {option}={given!r:.60} is text: write a list of names")
    for each in given:
        if wrong := names.wrong_text(each, names.IDENTIFIER_BYTES):
            raise DeclarationError(f"{name}: {option}: {wrong}")
    return tuple(given)


def _sql(name: str, option: str, given: str | None) -> Any:
    if given is not None and (wrong := names.wrong_text(given, 4000)):
        raise DeclarationError(f"{name}: {option} {wrong}")
    return given


def _no_key(name: str) -> tuple[str, ...]:
    raise DeclarationError(f"{name}: key names no column: without one nothing can be grouped")


def _type_of(name: str, option: str, given: type[Event] | str) -> tuple[str, int]:
    if isinstance(given, str):
        if wrong := names.wrong_dotted(given, names.TYPE_BYTES):
            raise DeclarationError(f"{name}: {option}: the event type {wrong}")
        return given, 1
    if not (isinstance(given, type) and issubclass(given, Event)):
        raise DeclarationError(f"{name}: {option}={given!r:.60} is neither an Event class nor an event type")
    spec = spec_of(given)
    return spec.type, spec.version


def _needs_no_more(name: str, event: type[Event] | str, given: set[str], what: str) -> None:
    if isinstance(event, str):
        return
    fields = {each.alias or field for field, each in event.model_fields.items() if each.is_required()}
    if missing := sorted(fields - given):
        raise DeclarationError(
            f"{name}: {event.__name__} needs {', '.join(missing)}, but it gets {what}: give them a default"
        )


def _seconds(name: str, option: str, given: Duration, least: int, most: int) -> int:
    seconds = option_duration(option, given, name).total_seconds()
    if seconds != int(seconds) or not least <= seconds <= most:
        raise DeclarationError(f"{name}: {option}={given!r} is not a whole number of seconds from {least} to {most}")
    return int(seconds)
