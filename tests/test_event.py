"""Declaring events: metadata apart from the fields, every rule with its message, views of other contexts' events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic import Field, ValidationError

from outrider import Envelope, Event
from outrider.errors import DeclarationError
from outrider.event import spec_of
from outrider.registry import EventSpec, Registry, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Every test declares in a registry of its own."""
    fresh = Registry()
    monkeypatch.setattr("outrider.event.registry", fresh)
    yield fresh
    assert not [model for model in registry if model.__module__ == __name__]


def envelope(payload: str, version: int = 1) -> Envelope:
    return Envelope(
        id=UUID(int=1),
        event_type="orders.placed",
        event_version=version,
        payload_json=payload,
        source="a",
        idempotency_key="1",
    )


def test_the_declaration_is_kept_apart_from_the_fields(own_registry: Registry) -> None:
    class Placed(Event, type="orders.placed", version=4, key="key"):
        type: str
        version: str
        key: str
        foreign: str

    placed = Placed(type="a", version="b", key="c", foreign="d")
    assert spec_of(Placed) == EventSpec(type="orders.placed", version=4, key="key", foreign=False)
    assert placed.model_dump() == {"type": "a", "version": "b", "key": "c", "foreign": "d"}
    assert own_registry.owned("orders.placed", 4) is Placed
    assert own_registry.owned("orders.placed", 1) is None
    assert list(own_registry) == [Placed]


def test_defaults_of_the_declaration() -> None:
    class Placed(Event, type="orders.placed"):
        pass

    assert spec_of(Placed) == EventSpec(type="orders.placed", version=1, key=None, foreign=False)


def test_events_are_frozen() -> None:
    class Placed(Event, type="orders.placed"):
        total: int

    placed = Placed(total=1)
    with pytest.raises(ValidationError, match="frozen"):
        placed.total = 2  # type: ignore[misc]
    assert placed.total == 1


def test_an_unknown_field_is_refused_at_construction_and_ignored_when_decoding() -> None:
    class Placed(Event, type="orders.placed"):
        total: int

    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Placed(total=1, totl=2)  # type: ignore[call-arg]
    assert envelope('{"total": 1, "added_later": 2}', version=9).decode(Placed) == Placed(total=1)


def test_an_alias_is_read_back() -> None:
    class Placed(Event, type="orders.placed"):
        order_id: str = Field(alias="orderId")

    placed = Placed(order_id="1")
    assert Placed.model_validate({"orderId": "1"}) == placed
    assert envelope(placed.model_dump_json(by_alias=True)).decode(Placed) == placed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "Orders"}, "Bad: the event type 'Orders' is not lower-case words joined by dots"),
        ({"type": ""}, "Bad: the event type '' is not lower-case words"),
        ({"type": "a" * 201}, "Bad: the event type has 201 bytes, at most 200"),
        ({"type": 7}, "Bad: the event type 7 is int, not str"),
        ({"type": "a.b", "version": 0}, "Bad: version is 0; versions count from 1"),
        ({"type": "a.b", "version": 2**31}, "Bad: version is 2147483648; versions count from 1"),
        ({"type": "a.b", "key": "order"}, r"Bad: key='order' is not one of its fields \(total\)"),
        ({"key": "total"}, "Bad: version=, key= and foreign= need a type="),
        ({"foreign": True}, "need a type="),
        ({"version": 2}, "need a type="),
    ],
)
def test_a_declaration_that_cannot_work(options: dict[str, Any], message: str, own_registry: Registry) -> None:
    with pytest.raises(DeclarationError, match=message):

        class Bad(Event, **options):
            total: int

    assert list(own_registry) == []


def test_a_class_variable_is_no_key() -> None:
    with pytest.raises(DeclarationError, match="key='shop' is not one of its fields"):

        class Placed(Event, type="orders.placed", key="shop"):
            shop: ClassVar[str] = "a"


def test_a_subclass_without_a_type_is_no_event_of_its_own(own_registry: Registry) -> None:
    class Placed(Event, type="orders.placed"):
        total: int

    class Special(Placed):
        pass

    with pytest.raises(
        DeclarationError, match=r'Special has no event type: declare it as class X\(Event, type="a.b"\)'
    ):
        spec_of(Special)
    assert list(own_registry) == [Placed]


def test_a_shared_ancestor_and_an_inherited_key() -> None:
    class Orders(Event):
        order_id: str

    class Placed(Orders, type="orders.placed", key="order_id"):
        total: int

    with pytest.raises(DeclarationError, match="Orders has no event type"):
        spec_of(Orders)
    assert Placed(order_id="1", total=1).order_id == "1"


def test_the_same_type_and_version_twice(own_registry: Registry) -> None:
    class Placed(Event, type="orders.placed"):
        pass

    with pytest.raises(
        DeclarationError, match=r"orders.placed version 1 is declared twice: by .*Placed and by .*Other"
    ):

        class Other(Event, type="orders.placed"):
            pass

    class Newer(Event, type="orders.placed", version=2):
        pass

    assert list(own_registry) == [Placed, Newer]


def test_a_reloaded_module_replaces_its_class(own_registry: Registry) -> None:
    def declare() -> type[Event]:
        class Placed(Event, type="orders.placed"):
            pass

        return Placed

    declare()
    again = declare()
    assert list(own_registry) == [again]


def test_foreign_views_stand_beside_the_owner(own_registry: Registry) -> None:
    class Placed(Event, type="orders.placed"):
        order_id: str
        total: int

    class InBilling(Event, type="orders.placed", foreign=True):
        total: int

    class InMail(Event, type="orders.placed", foreign=True):
        order_id: str

    assert spec_of(InBilling).foreign
    assert own_registry.owned("orders.placed", 1) is Placed
    assert list(own_registry) == [Placed, InBilling, InMail]
    stored = envelope(Placed(order_id="1", total=2).model_dump_json())
    assert stored.decode(InBilling) == InBilling(total=2)
    assert stored.decode(InMail) == InMail(order_id="1")


def test_an_envelope_shows_its_payload() -> None:
    assert envelope('{"a": [1, 2.5, null]}').payload == {"a": [1, 2.5, None]}
    with pytest.raises(AttributeError):
        envelope("{}").source = "b"  # type: ignore[misc]
