"""`Event`: a frozen pydantic model with a type, a version and an ordering key, kept apart from its fields."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from outrider import names
from outrider.errors import DeclarationError
from outrider.registry import EventSpec, registry


class Event(BaseModel):
    """A fact that happened, published once and read by every subscriber.

        class OrderPlaced(Event, type="orders.placed", version=1, key="order_id"):
            order_id: UUID
            total: Decimal

    `key` names the field whose value orders events: those with the same key are handled in the order of publishing.
    `foreign=True` declares a consumer's own view of another context's event: it cannot be published, needs only the
    fields that the consumer reads, and ignores the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    __outrider__: ClassVar[EventSpec | None] = None

    def __init_subclass__(
        cls, *, type: str | None = None, version: int = 1, key: str | None = None, foreign: bool = False, **options: Any
    ) -> None:
        if options:
            known = "type, version, key, foreign"
            raise DeclarationError(f"{cls.__name__}: Event has no option {', '.join(options)}; it has {known}")
        super().__init_subclass__()
        cls.__outrider__ = None
        if type is None:
            if key is not None or foreign or version != 1:
                raise DeclarationError(f"{cls.__name__}: version=, key= and foreign= need a type=")
            return
        wrong = names.wrong_dotted(type, names.TYPE_BYTES)
        if wrong:
            raise DeclarationError(f"{cls.__name__}: the event type {wrong}")
        if not 1 <= version < 2**31:
            raise DeclarationError(f"{cls.__name__}: version is {version}; versions count from 1 to 2**31 - 1")
        cls.__outrider__ = EventSpec(type=type, version=version, key=key, foreign=foreign)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        spec = cls.__outrider__
        if spec is None:
            return
        if spec.key is not None and spec.key not in cls.model_fields:
            raise DeclarationError(
                f"{cls.__name__}: key={spec.key!r} is not one of its fields ({', '.join(cls.model_fields)})"
            )
        registry.add(spec, cls)


def spec_of(model: type[Event]) -> EventSpec:
    """The declaration of an event class; an error for a class that has no type of its own."""
    if model.__outrider__ is None:
        raise DeclarationError(f'{model.__name__} has no event type: declare it as class X(Event, type="a.b")')
    return model.__outrider__
