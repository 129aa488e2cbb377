"""Publish: one insert on the caller's connection, in the caller's transaction.

Never commits, opens a connection or talks to a broker. What cannot be stored is refused before the insert.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Protocol, TypedDict, Unpack
from uuid import UUID

from pydantic import ValidationError

from outrider import names
from outrider.config import Settings
from outrider.envelope import Envelope, inherited_cause, inherited_workspace
from outrider.errors import PublishRefused
from outrider.event import Event
from outrider.ids import uuid7, uuid7s
from outrider.payload import encode
from outrider.postgres.event_inserts import Append
from outrider.postgres.inserts import Driver
from outrider.postgres.notifier import Notifier
from outrider.registry import EventSpec, registry
from outrider.signals import Published, Signals
from outrider.trace import LONGEST_JSON, Carrier, TracedMessage, current_trace, sending, trace_id


class PublishOptions(TypedDict, total=False):
    key: str | None
    """The ordering key. Default: the field that the event class names as its key."""
    idempotency_key: str | None
    """A handler handles events with the same key once. Default: the event's id."""
    target: str | None
    """The only context that sees the event. Default: all contexts."""
    workspace_id: str | None
    """The tenant. Default: that of the event being handled, if any. None = no tenant."""
    aggregate_kind: str | None
    """The kind of aggregate that the key identifies."""
    entity_version: int | None
    """The version of the aggregate after the event."""
    content_class: str
    """How sensitive the payload is: public, internal (the default), confidential or restricted."""
    occurred_at: datetime | None
    """When it happened. Default: now, by the database's clock."""
    channel_class: str | None
    """The class of workers to wake."""
    telemetry: Mapping[str, str] | None
    """Texts to be carried with the trace context, such as a request's id. Default: those of the event being handled."""


_MARK = "_checked_by"
OPTIONS = frozenset(PublishOptions.__annotations__)
_DEFAULT_TEXTS = (("key", names.KEY_BYTES), ("workspace_id", names.WORKSPACE_BYTES))
_TEXTS = (
    ("key", names.KEY_BYTES),
    ("idempotency_key", names.KEY_BYTES),
    ("workspace_id", names.WORKSPACE_BYTES),
    ("aggregate_kind", names.TYPE_BYTES),
)
"""Texts to be checked, with their limits in bytes; those above are set also without options."""


class FindDriver(Protocol):
    def __call__(self, conn: object, *, blocking: bool, verb: str = ...) -> Driver: ...


class Publisher:
    """Turns events into envelopes, with the settings of one app, and appends them to the log."""

    def __init__(self, settings: Settings, signals: Signals, driver_of: FindDriver, notifier: Notifier) -> None:
        self._settings = settings
        self._signals = signals
        self._driver_of = driver_of
        self._notifier = notifier
        self._stamp = (settings.context, settings.generation)
        self._content_classes = (*names.CONTENT_CLASSES, *sorted(settings.content_classes))
        self._defaults: dict[str, Any] = {
            "source": settings.context,
            "target": None,
            "content_class": "internal",
            "channel": names.channel_of(settings.generation),
            "generation": settings.generation,
            "aggregate_kind": None,
            "entity_version": None,
            "origin": None,
            "occurred_at": None,
            "seq": None,
        }
        """The fields of an envelope that are the same unless an option sets them."""

    def envelope(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """The envelope of an event, without what the database adds. Raises PublishRefused if it cannot be stored."""
        if options and (wrong := names.unknown_option("publish", options, OPTIONS)):
            raise TypeError(wrong)
        envelope = self._envelope(event, uuid7(), current_trace(), options)
        vars(envelope)[_MARK] = self._stamp  # it need not be checked again; dataclasses.replace drops the mark
        return envelope

    def envelopes(self, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """The envelopes of many events. A refusal names the index of the event."""
        if isinstance(events, Event | Envelope):
            raise TypeError("publish_many takes several events, not one: use publish, or a list")
        events, trace, envelopes, given = list(events), current_trace(), [], set[UUID]()
        for place, (event, new_id) in enumerate(zip(events, uuid7s(len(events)), strict=True)):
            try:
                if not isinstance(event, Envelope):
                    envelopes.append(self._envelope(event, new_id, trace, {}))
                    continue
                envelope = self.checked(event)
            except PublishRefused as refused:
                raise PublishRefused(refused.event_type, f"events[{place}].{refused.field}", refused.rule) from None
            if envelope.id in given:
                raise PublishRefused(envelope.event_type, f"events[{place}]", "is the same envelope as one before it")
            given.add(envelope.id)
            envelopes.append(envelope)
        return envelopes

    def _envelope(self, event: Event, event_id: UUID, trace: Carrier, options: PublishOptions) -> Envelope:
        spec = _publishable(event)
        fields = self._defaults | {
            "id": event_id,
            "event_type": spec.type,
            "event_version": spec.version,
            "payload_json": encode(event, spec.type, self._settings.payload_limit),
            "workspace_id": inherited_workspace.get(),
            "key": None if spec.key is None else _text_of(getattr(event, spec.key)),
            "idempotency_key": str(event_id),
            "trace_context": trace,
        }
        if options:
            fields |= _fields_of(options)
        for field, limit in _TEXTS if options else _DEFAULT_TEXTS:
            if (text := fields[field]) is not None and (wrong := names.wrong_text(text, limit)):
                raise PublishRefused(spec.type, field, wrong)
        if options:
            self._refuse_wrong(spec.type, options)
            if (channel_class := options.get("channel_class")) is not None:
                fields["channel"] = self._channel(spec.type, channel_class)
            if telemetry := options.get("telemetry"):
                fields["trace_context"] = _with_telemetry(spec.type, trace, telemetry)
        return Envelope.of(fields)

    def _refuse_wrong(self, event_type: str, options: PublishOptions) -> None:
        target, content_class = options.get("target"), options.get("content_class", "internal")
        entity_version, occurred_at = options.get("entity_version"), options.get("occurred_at")
        if target is not None and (wrong := self._wrong_target(target)):
            raise PublishRefused(event_type, "target", wrong)
        if content_class not in self._content_classes:
            known = ", ".join(self._content_classes)
            raise PublishRefused(event_type, "content_class", f"{content_class!r} is not one of {known}")
        if entity_version is not None and (wrong := _wrong_version(entity_version)):
            raise PublishRefused(event_type, "entity_version", wrong)
        if occurred_at is not None and (wrong := names.wrong_time(occurred_at)):
            raise PublishRefused(event_type, "occurred_at", wrong)

    def checked(self, envelope: Envelope) -> Envelope:
        """A checked copy of an envelope, which the caller may have built. Its event class encodes the payload anew."""
        if not isinstance(envelope, Envelope):
            rule = "is not an Envelope: app.envelope(event) makes one"
            raise PublishRefused(type(envelope).__name__, "envelope", rule)
        kind = envelope.event_type
        if envelope.seq is not None:
            rule = (
                f"is already in a log, at position {envelope.seq}: publish an event, or an envelope from app.envelope()"
            )
            raise PublishRefused(kind, "envelope", rule)
        if vars(envelope).get(_MARK) == self._stamp:
            return Envelope.of({**vars(envelope)})
        for field, wanted in (("id", UUID), ("event_version", int), ("idempotency_key", str), ("channel", str)):
            if not isinstance(value := getattr(envelope, field), wanted):
                raise PublishRefused(kind, field, f"is {type(value).__name__}, not {wanted.__name__}")
        for field, value, own in (
            ("origin", envelope.origin, None),
            ("source", envelope.source, self._settings.context),
            ("generation", envelope.generation, self._settings.generation),
        ):
            if value != own:
                raise PublishRefused(kind, field, f"is {value!r}; this app publishes with {own!r}")
        if wrong := _wrong_trace(envelope.trace_context):
            raise PublishRefused(kind, "trace_context", wrong)
        model = registry.owned(kind, envelope.event_version)
        if model is None:
            raise PublishRefused(
                kind, "event_type", f"version {envelope.event_version} is not an event that this app owns"
            )
        try:
            event = model.model_validate_json(envelope.payload_json)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise PublishRefused(kind, where or "payload", first["msg"]) from None
        base, _, channel_class = envelope.channel.partition(names.channel_of(envelope.generation, ""))
        again = self.envelope(
            event,
            key=envelope.key,
            idempotency_key=envelope.idempotency_key,
            target=envelope.target,
            workspace_id=envelope.workspace_id,
            aggregate_kind=envelope.aggregate_kind,
            entity_version=envelope.entity_version,
            content_class=envelope.content_class,
            occurred_at=envelope.occurred_at,
            channel_class=channel_class if not base else None,
        )
        if envelope.channel != again.channel:
            raise PublishRefused(kind, "channel", f"is {envelope.channel!r}; this app publishes to {again.channel!r}")
        return Envelope.of(vars(again) | {"id": envelope.id, "trace_context": envelope.trace_context})

    async def append(self, conn: object, envelopes: list[Envelope]) -> list[Envelope]:
        """Inserts the envelopes and completes them in place, so the caller must not have shared them."""
        driver = self._driver_of(conn, blocking=False)
        assert driver.run is not None
        if envelopes:
            with sending("publish", map(_message, envelopes)) as carried:
                append = self._append(envelopes, carried)
                append.written(await driver.run(conn, append))
            self._announce(conn, driver, envelopes)
        return envelopes

    def append_sync(self, conn: object, envelopes: list[Envelope]) -> list[Envelope]:
        driver = self._driver_of(conn, blocking=True)
        assert driver.run_sync is not None
        if envelopes:
            with sending("publish", map(_message, envelopes)) as carried:
                append = self._append(envelopes, carried)
                append.written(driver.run_sync(conn, append))
            self._announce(conn, driver, envelopes)
        return envelopes

    def _append(self, envelopes: Sequence[Envelope], carried: Sequence[Carrier] | None) -> Append:
        if carried is not None:
            for envelope, carrier in zip(envelopes, carried, strict=True):
                vars(envelope)["trace_context"] = carrier
        notify = self._settings.notify == "commit"
        return Append.of(envelopes, self._settings.schema, notify=notify, cause=inherited_cause.get())

    def _announce(self, conn: object, driver: Driver, written: list[Envelope]) -> None:
        if self._settings.notify == "after_commit" and driver.after_commit is not None:
            wakeups = {(envelope.channel, envelope.event_type) for envelope in written}
            driver.after_commit(conn, lambda: self._notifier.notify(wakeups))
        self._signals.emit_all(Published, map(Published, written))

    def _wrong_target(self, target: str) -> str | None:
        known = self._settings.contexts
        if known is not None and target not in known:
            return f"{target!r} is not one of the contexts that the app names ({', '.join(sorted(known))})"
        return names.wrong_word(target)

    def _channel(self, event_type: str, channel_class: str) -> str:
        channel = names.channel_of(self._settings.generation, channel_class)
        wrong = names.wrong_word(channel_class) or names.wrong_text(channel, names.IDENTIFIER_BYTES)
        if wrong:
            raise PublishRefused(event_type, "channel_class", wrong)
        return channel


class PublisherOn:
    """An EventPublisher on one connection."""

    def __init__(self, publisher: Publisher, conn: object) -> None:
        self._publisher = publisher
        self._conn = conn

    async def publish(self, envelope: Envelope) -> None:
        await self._publisher.append(self._conn, [self._publisher.checked(envelope)])


def _fields_of(options: PublishOptions) -> dict[str, Any]:
    """A key of None stands for the default."""
    keys = ("key", "idempotency_key")
    return {
        name: value
        for name, value in options.items()
        if name not in ("channel_class", "telemetry") and (value is not None or name not in keys)
    }


def _text_of(value: Any) -> str | None:
    """The text of a field that serves as the key."""
    value = value.value if isinstance(value, Enum) else value
    return None if value is None else str(value)


def _message(envelope: Envelope) -> TracedMessage:
    return TracedMessage(envelope.id, envelope.event_type, envelope.trace_context)


def _with_telemetry(event_type: str, trace: Carrier, telemetry: object) -> dict[str, str]:
    """Refused if it is too long: a trace context that is too long is left out, but this one was asked for."""
    if not isinstance(telemetry, Mapping):
        raise PublishRefused(event_type, "telemetry", f"is {type(telemetry).__name__}, not a dict of texts")
    carrier = {**(trace or {}), **telemetry}
    wrong = _wrong_trace(carrier)
    if not wrong and "traceparent" in telemetry and trace_id(carrier) is None:
        wrong = "has a traceparent that is not one of W3C Trace Context"
    if not wrong and (length := len(json.dumps(carrier))) > LONGEST_JSON:
        wrong = f"has {length:,} characters as JSON with the trace context; the limit is {LONGEST_JSON:,}"
    if wrong:
        raise PublishRefused(event_type, "telemetry", wrong)
    return carrier


def _wrong_trace(trace: object) -> str | None:
    if trace is not None and not isinstance(trace, dict):
        return f"is {type(trace).__name__}, not dict"
    for text in (part for pair in (trace or {}).items() for part in pair):
        if not isinstance(text, str):
            return f"has {text!r:.60}, which is {type(text).__name__}, not str"
        if wrong := names.unstorable(text):
            return wrong
    return None


def _wrong_version(version: object) -> str | None:
    if not isinstance(version, int) or isinstance(version, bool):
        return f"is {type(version).__name__}, not int"
    return None if -(2**63) <= version < 2**63 else f"{version} does not fit into 64 bits"


def _publishable(event: Any) -> EventSpec:
    if Event not in type(event).__mro__:  # isinstance costs more: pydantic answers it
        found = event.__name__ if isinstance(event, type) else type(event).__name__
        also = "; publish_many takes envelopes" if isinstance(event, Envelope) else ""
        raise PublishRefused(found, "event", f"is not an instance of an Event class{also}")
    spec: EventSpec | None = type(event).__outrider__
    if spec is None:
        rule = 'is not registered: declare it as class X(Event, type="a.b")'
        raise PublishRefused(type(event).__name__, "event", rule)
    if spec.foreign:
        raise PublishRefused(spec.type, "event", "is a foreign view: only the context that owns the event publishes it")
    return spec
