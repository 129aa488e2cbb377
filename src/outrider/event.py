"""`Event`: a frozen pydantic model, declared with a type, a version and an ordering key."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict

from outrider import names
from outrider.errors import DeclarationError
from outrider.registry import EventSpec, Statement, Upcaster, registry


class Declared(BaseModel):
    """The base of events and jobs: frozen fields, and a declaration beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    __outrider__: ClassVar[EventSpec | None] = None


class _FromDeclaration:
    """A class attribute that reads the declaration. A field of the same name takes its place."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, owner: type[Declared], name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Declared]) -> Any:
        # pydantic asks for the default of a field in this way, before the fields exist.
        if any(self._name in inspect.get_annotations(each) for each in owner.__mro__[: -len(Event.__mro__)]):
            raise AttributeError(self._name)
        if owner.__outrider__ is None:
            raise AttributeError(f"{owner.__name__} has no {self._name}: declare it with type=")
        return getattr(owner.__outrider__, self._part)


class Event(Declared):
    """A fact that happened, published once and read by every subscriber.

        class OrderPlaced(Event, type="orders.placed", version=1, key="order_id"):
            order_id: UUID
            total: Decimal

    `key` names the field whose value orders events: those with the same key are handled in the order of publishing.
    `foreign=True` declares a consumer's own view of another context's event: it cannot be published, needs only the
    fields that the consumer reads, and ignores the others.
    `upcasters={1: v1_to_v2}` converts payloads of older versions, one version at a time, before they are read. A version
    without an upcaster, or a newer one, is read as it is.
    `deprecated_after="2027-01-31"` is the last day of this version; `outrider contracts check` warns before it.
    """

    event_type: ClassVar[str] = cast(str, _FromDeclaration("type"))
    event_version: ClassVar[int] = cast(int, _FromDeclaration("version"))

    def __init_subclass__(
        cls,
        *,
        type: str | None = None,
        version: int = 1,
        key: str | None = None,
        foreign: bool = False,
        upcasters: Mapping[int, Upcaster] | None = None,
        deprecated_after: date | str | None = None,
        **options: Any,
    ) -> None:
        if options:
            known = "type, version, key, foreign, upcasters, deprecated_after"
            raise DeclarationError(f"{cls.__name__}: Event has no option {', '.join(options)}; it has {known}")
        super().__init_subclass__()
        cls.__outrider__ = None
        if type is None:
            given = {
                "version": version != 1,
                "key": key is not None,
                "foreign": foreign,
                "upcasters": upcasters is not None,
                "deprecated_after": deprecated_after is not None,
            }
            if lonely := [f"{name}=" for name, is_given in given.items() if is_given]:
                raise DeclarationError(f"{cls.__name__}: {' and '.join(lonely)} need{'s' * (len(lonely) == 1)} a type=")
            return
        if wrong := wrong_declaration("event", type, names.TYPE_BYTES, version, upcasters):
            raise DeclarationError(f"{cls.__name__}: {wrong}")
        cls.__outrider__ = EventSpec(
            type=type,
            version=version,
            key=key,
            foreign=foreign,
            upcasters=dict(sorted((upcasters or {}).items())),
            deprecated_after=_day(cls.__name__, deprecated_after),
        )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if cls.__outrider__ is not None:
            check_key(cls, cls.__outrider__)
            registry.add(cls.__outrider__, cls, Statement.of(cls))


def spec_of(model: type[Declared]) -> EventSpec:
    """The declaration of an event or job class; an error for a class that has no type of its own."""
    if model.__outrider__ is None:
        kind = "Event" if issubclass(model, Event) else "Job"
        raise DeclarationError(
            f'{model.__name__} has no {kind.lower()} type: declare it as class X({kind}, type="a.b")'
        )
    return model.__outrider__


def check_key(model: type[Declared], spec: EventSpec) -> None:
    if spec.key is not None and spec.key not in model.model_fields:
        raise DeclarationError(
            f"{model.__name__}: key={spec.key!r} is not one of its fields ({', '.join(model.model_fields)})"
        )


def wrong_declaration(kind: str, type_: object, limit: int, version: int, upcasters: object) -> str | None:
    if wrong := names.wrong_dotted(type_, limit):
        return f"the {kind} type {wrong}"
    if not 1 <= version < 2**31:
        return f"version is {version}; versions count from 1 to 2**31 - 1"
    return None if upcasters is None else _wrong_upcasters(upcasters, version)


def _wrong_upcasters(upcasters: object, version: int) -> str | None:
    if not isinstance(upcasters, Mapping):
        return f"upcasters={upcasters!r:.60} is no dict: write upcasters={{1: v1_to_v2}}"
    for start, step in upcasters.items():
        if not isinstance(start, int) or isinstance(start, bool) or not 1 <= start < version:
            if version == 1:
                return f"upcasters start at {start!r}, but version 1 has nothing older to come from: declare version=2"
            return f"upcasters start at {start!r}: the versions to come from are 1 to {version - 1}"
        if not callable(step):
            return f"the upcaster from {start} is {step!r:.60}, which cannot be called: pass a function, dict -> dict"
        if inspect.iscoroutinefunction(step):
            return f"the upcaster from {start}, {step.__name__}, is async: decoding cannot wait for it; use a plain def"
    return None


def _day(name: str, given: object) -> date | None:
    try:
        day = date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        day = given
    if day is None or (isinstance(day, date) and not isinstance(day, datetime)):
        return day
    raise DeclarationError(f"{name}: deprecated_after={given!r} is not a day: write it like '2027-01-31'")
