"""Which event classes exist: who owns a (type, version), who merely views it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.errors import DeclarationError

if TYPE_CHECKING:
    from outrider.event import Event


@dataclass(frozen=True, slots=True)
class EventSpec:
    """What `class X(Event, type=..., version=..., key=..., foreign=...)` declared, apart from the fields."""

    type: str
    version: int
    key: str | None
    foreign: bool


class Registry:
    """The declared event classes. One per process is normal: classes enter it when they are defined."""

    def __init__(self) -> None:
        self._owned: dict[tuple[str, int], type[Event]] = {}
        self._views: list[type[Event]] = []

    def add(self, spec: EventSpec, model: type[Event]) -> None:
        if spec.foreign:
            self._views.append(model)
            return
        known = self._owned.get((spec.type, spec.version))
        if known is not None and _name(known) != _name(model):
            raise DeclarationError(
                f"{spec.type} version {spec.version} is declared twice: by {_name(known)} and by {_name(model)}. "
                "Give one of them another type or version, or declare a consumer's view with foreign=True."
            )
        self._owned[spec.type, spec.version] = model

    def owned(self, event_type: str, version: int) -> type[Event] | None:
        return self._owned.get((event_type, version))

    def __iter__(self) -> Iterator[type[Event]]:
        yield from self._owned.values()
        yield from self._views


def _name(model: type[Event]) -> str:
    return f"{model.__module__}.{model.__qualname__}"


registry = Registry()
