"""Rollups: which rows or events are staged, by which key they are grouped, and which events they become.

The SQL in a rollup is your own. The preflight checks it, and it runs with the rights of whoever installs the rollup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

from outrider import names
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event, spec_of
from outrider.options import Declaration, one_of, option, optional, text, whole, whole_seconds
from outrider.postgres import rollups
from outrider.retry import Duration
from outrider.worker.handler import Handler, declare_handler
from outrider.worker.handler_context import HandlerContext

Scheduler = Literal["auto", "pg_cron", "worker"]
OF_A_GROUP = ("key", "piece_count", "first_at", "last_at")
"""The fields that every rollup event has."""
MOST_CARRIED = 40
SQL_BYTES = 4000
_NAME = r'("([^"\x00]|""){1,63}"|[a-z_][a-z0-9_$]{0,62})'
_TABLE = re.compile(rf"{_NAME}(\.{_NAME})?\Z")
_sql = text(SQL_BYTES)


@dataclass(frozen=True, slots=True)
class Notification:
    """A table of yours that gets a row for each event, in the same transaction. Rows that exist already are skipped.

    `columns` maps each of its columns to SQL over event_type, event_id, workspace_id, key, piece_count, payload,
    idempotency_key and occurred_at.
    """

    table: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Parent:
    """A table of yours in which one row is looked up for each row, or event, that is staged.

    `on` is SQL over `parent` and `new`, by a unique key: Parent("document", on="parent.id = new.document_id").
    """

    table: str
    on: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column that install adds to a table of yours, if it is missing."""

    table: str
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint of yours that install replaces, to allow the new event types. Uninstall restores it."""

    table: str
    name: str
    check: str


class RollupOptions(TypedDict, total=False):
    """The keyword arguments of app.rollup, beside the required ones. `Rollup` explains them."""

    when: str | None
    carry: Sequence[str] | Mapping[str, str]
    first: Sequence[str] | Mapping[str, str]
    parent: Parent | None
    debounce: Duration
    threshold: int
    max_wait: Duration
    every: Duration
    workspace: str | None
    notify: Notification | None
    columns: Sequence[Column]
    checks: Sequence[Check]
    scheduler: Scheduler


def _table(name: str, table: object) -> str:
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


def _carried(name: str, option: str, given: Sequence[str] | Mapping[str, str]) -> tuple[str, ...] | dict[str, str]:
    fields = _fields(name, option, given)
    if isinstance(given, Mapping):
        return {field: _sql(name, f"{option}: {field}", given[field]) for field in fields}
    return fields


def _of_first(name: str, option: str, given: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        given = {f"first_{each}": each for each in _names(name, option, given)}
    _names(name, option, tuple(given.values()))
    return {field: given[field] for field in _fields(name, option, given)}


def _fields(name: str, option: str, given: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """The fields that an option adds to the events."""
    found = _names(name, option, given if isinstance(given, str) else tuple(given))
    if len(found) > MOST_CARRIED:
        raise DeclarationError(f"{name}: {option} names {len(found)} columns, at most {MOST_CARRIED} can be carried")
    if taken := set(found) & set(OF_A_GROUP):
        raise DeclarationError(
            f"{name}: {option}={sorted(taken)} would hide what every rollup event has: {', '.join(OF_A_GROUP)}"
        )
    return found


def _parent(name: str, option: str, given: Parent) -> Parent:
    return Parent(_table(name, given.table), _sql(name, f"{option}: on", given.on))


def _notification(name: str, _option: str, given: Notification) -> Notification:
    if not given.columns:
        raise DeclarationError(f"{name}: notify has no columns to fill")
    return Notification(_table(name, given.table), dict(given.columns))


def _columns(name: str, option: str, given: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(Column(_table(name, each.table), *_names(name, option, (each.name, each.type))) for each in given)


def _checks(name: str, option: str, given: Sequence[Check]) -> tuple[Check, ...]:
    for each in given:
        _names(name, option, (each.name,))
        _sql(name, f"{option}:", each.check)
    return tuple(Check(_table(name, each.table), each.name, each.check) for each in given)


@dataclass(frozen=True, kw_only=True)
class Rollup(Declaration):
    kind: ClassVar = "a rollup"

    context: str
    table: str | None
    events: tuple[type[Event], ...]
    key: str | tuple[str, ...]
    single: tuple[str, int]
    """The event type and its version."""
    rollup: tuple[str, int]
    when: str | None = option(None, optional(_sql))
    """SQL over `new`: only such rows are staged. None = all. On a table, it is the WHEN of the trigger."""
    carry: tuple[str, ...] | dict[str, str] = option((), _carried)
    """What goes into the events, and nothing else does: columns, or fields of the payload; or fields with an SQL
    expression over `new` and `parent` each."""
    first: dict[str, str] = option((), _of_first)
    """Fields of a rollup event that are carried fields of its first row: {"first_actor": "actor"}, or ["actor"]."""
    parent: Parent | None = option(None, optional(_parent))
    """A table in which one row is looked up by key: `parent` in `key`, `carry` and `workspace`."""
    debounce: int = option("90s", whole_seconds(60, 300))
    """A group is due when its newest row is older than this: 60 to 300 s."""
    threshold: int = option(2, whole(2, 50))
    """Rows of a group that become one event, 2 to 50; fewer become an event each."""
    max_wait: int = option("10m", whole_seconds(60, 86_400))
    """A group is due, too, when its oldest row is older than this: 60 s to a day."""
    every: int = option("2m", whole_seconds(10, 3600))
    """How often to look: 10 s to an hour."""
    workspace: str | None = option(None, optional(_sql))
    """SQL over `new` and `parent`: the tenant. None = app.workspace_id of the session that inserts; for events, theirs."""
    notify: Notification | None = option(None, optional(_notification))
    """A table of yours that gets a row for each event."""
    columns: tuple[Column, ...] = option((), _columns)
    """Columns that install adds to tables of yours."""
    checks: tuple[Check, ...] = option((), _checks)
    """CHECK constraints of yours that install replaces."""
    scheduler: Scheduler = option("auto", one_of(Scheduler))
    """Who ticks: "auto": pg_cron where it is installed, else the workers of this app; "pg_cron"; "worker"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := names.wrong_dotted(self.name, names.IDENTIFIER_BYTES - len("outrider_rollup_")):
            raise DeclarationError(f"the name of the rollup {wrong}")
        if (self.table is None) == (not self.events):
            raise DeclarationError(
                f"{self.name}: a rollup is on a table, table='orders', or on events, events=[OrderPlaced]"
            )
        if self.table is not None:
            object.__setattr__(self, "table", _table(self.name, self.table))
        if isinstance(self.key, str):
            _sql(self.name, "key", self.key)
        elif not _names(self.name, "key", self.key):
            raise DeclarationError(f"{self.name}: key names no column: without one nothing can be grouped")
        if strange := sorted({*self.first.values()} - {*self.carry}):
            raise DeclarationError(f"{self.name}: first names {', '.join(strange)}, which carry does not")
        if doubled := sorted({*self.first} & {*self.carry}):
            raise DeclarationError(f"{self.name}: first and carry both give {', '.join(doubled)}: rename one of them")
        if {self.single[0], self.rollup[0]} & {spec_of(event).type for event in self.events}:
            raise DeclarationError(
                f"{self.name}: it would emit what it stages, again and again: emit other event types"
            )
        if self.notify is not None and self.notify.table == self.table:
            raise DeclarationError(
                f"{self.name}: notify would fill the table that it stages, again and again: name another table"
            )
        if self.max_wait < self.debounce:
            raise DeclarationError(
                f"{self.name}: max_wait={self.max_wait} s is shorter than debounce={self.debounce} s: it must be at least "
                "as long"
            )

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
            "carry": self.carry if isinstance(self.carry, dict) else list(self.carry),
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
        if self.parent is not None:
            spec["parent"] = {"table": self.parent.table, "on": self.parent.on}
        if self.first:
            spec["first"] = self.first
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
    declared = Rollup.declare(
        options,
        name=name,
        context=context,
        table=table,
        events=events,
        key=key if isinstance(key, str) else tuple(key),
        single=_type_of(name, "single", single),
        rollup=_type_of(name, "rollup", rollup),
    )
    _needs_no_more(name, single, {*declared.carry}, "the carried columns")
    always = [*OF_A_GROUP, *declared.first]
    what = f"{', '.join(always[:-1])} and {always[-1]}; carried columns may be missing"
    _needs_no_more(name, rollup, {*always}, what)
    return declared


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


def chosen_rollup(declared: Mapping[str, Rollup], name: str | None) -> Rollup:
    """The one with this name; without a name, the only one."""
    if not declared:
        raise ConfigError("the app declares no rollup: app.rollup(…) is one")
    if name is None and len(declared) == 1:
        [name] = declared
    if name is None or name not in declared:
        wrong = "name one" if name is None else f"{name!r} is no rollup of the app"
        raise ConfigError(f"{wrong}; it declares: {', '.join(declared)}")
    return declared[name]


def stager(rollup: Rollup, schema: Callable[[], str]) -> Handler:
    async def stage(_: list[Event], ctx: HandlerContext) -> None:
        seqs = [each.seq for each in ctx.envelopes if each.seq is not None]
        await rollups.stage(ctx.tx, rollup.slug, seqs, schema())

    options = {"name": rollup.name, "order": "none"}
    return declare_handler(rollup.context, rollup.events, stage, options)
