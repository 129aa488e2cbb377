"""The event and job classes of this process: which class owns a (type, version), and which ones are views of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outrider.errors import DeclarationError

if TYPE_CHECKING:
    from outrider.event import Declared, Event

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Converts the payload of one version to the next."""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """What `class X(Event, type=..., version=..., key=..., foreign=...)` declared, apart from the fields."""

    type: str
    version: int
    key: str | None
    foreign: bool
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict, hash=False)
    """By the version that they convert, in ascending order."""
    deprecated_after: date | None = None
    """The last day on which anybody should publish or read this version."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Where a class statement stands, and the import of its module that ran it. Tells a reload from a duplicate."""

    file: str
    line: int
    load: object

    @classmethod
    def of(cls, model: type[Declared]) -> Statement | None:
        """Call it while the statement runs. None for a class that was not made in its own module."""
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") != model.__module__:
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__spec__"))

    def repeats(self, other: Statement) -> bool:
        """Whether it is the same statement, run again: at the same line, or at another line after a reload."""
        moved = self.file == other.file and self.line != other.line
        return not moved or self.load is not other.load or self.file.startswith("<")


M = TypeVar("M", bound="Declared")


class Registry(Generic[M]):
    """The declared classes, events or jobs. A class is added when it is defined."""

    def __init__(self) -> None:
        self._owned: dict[tuple[str, int], type[M]] = {}
        self._statements: dict[tuple[str, int], Statement | None] = {}
        self._views: list[type[M]] = []

    def add(self, spec: EventSpec, model: type[M], statement: Statement | None = None) -> None:
        if spec.foreign:
            self._views.append(model)
            return
        known = self._owned.get((spec.type, spec.version))
        before = self._statements.get((spec.type, spec.version))
        again = None
        if known is not None and _name(known) != _name(model):
            again = f"by {_name(known)} and by {_name(model)}"
        elif statement is not None and before is not None and not statement.repeats(before):
            again = f"by {_name(model)} at line {before.line} of {before.file} and again at line {statement.line}"
        if again is not None:
            raise DeclarationError(
                f"{spec.type} version {spec.version} is declared twice: {again}. "
                "Give one of them another type or version, or declare a consumer's view with foreign=True."
            )
        self._owned[spec.type, spec.version] = model
        self._statements[spec.type, spec.version] = statement

    def owned(self, event_type: str, version: int) -> type[M] | None:
        return self._owned.get((event_type, version))

    def __iter__(self) -> Iterator[type[M]]:
        yield from self._owned.values()
        yield from self._views


def _name(model: type[Declared]) -> str:
    return f"{model.__module__}.{model.__qualname__}"


registry: Registry[Event] = Registry()
