"""Declaring events: metadata apart from the fields, every rule with its message, views of other contexts' events."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic import ConfigDict, Field, ValidationError, create_model

from outrider import Envelope, Event
from outrider.errors import DeclarationError, Undecodable
from outrider.event import spec_of
from outrider.registry import EventSpec, Registry, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Event]]:
    """Every test declares in a registry of its own."""
    fresh = Registry[Event]()
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


def test_the_declaration_is_kept_apart_from_the_fields(own_registry: Registry[Event]) -> None:
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


def test_a_class_names_its_type_and_version() -> None:
    class Placed(Event, type="orders.placed", version=2):
        number: int

    assert (Placed.event_type, Placed.event_version) == ("orders.placed", 2)
    assert Placed(number=1).event_type == "orders.placed"
    with pytest.raises(AttributeError):
        _ = Event.event_type


@pytest.mark.filterwarnings("error")
def test_a_field_of_that_name_is_a_field() -> None:
    class Logged(Event, type="audit.logged"):
        event_type: str  # type: ignore[misc]

    with pytest.raises(ValidationError, match="Field required"):
        Logged()  # type: ignore[call-arg]
    assert Logged(event_type="login").event_type == "login"


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
        ({"key": "total"}, "Bad: key= needs a type="),
        ({"foreign": True}, "foreign= needs a type="),
        ({"version": 2}, "version= needs a type="),
    ],
)
def test_a_declaration_that_cannot_work(options: dict[str, Any], message: str, own_registry: Registry[Event]) -> None:
    with pytest.raises(DeclarationError, match=message):

        class Bad(Event, **options):
            total: int

    assert list(own_registry) == []


def test_a_class_variable_is_no_key() -> None:
    with pytest.raises(DeclarationError, match="key='shop' is not one of its fields"):

        class Placed(Event, type="orders.placed", key="shop"):
            shop: ClassVar[str] = "a"


def test_a_subclass_without_a_type_is_no_event_of_its_own(own_registry: Registry[Event]) -> None:
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


def test_the_same_type_and_version_twice(own_registry: Registry[Event]) -> None:
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


def test_a_reloaded_module_replaces_its_class(own_registry: Registry[Event]) -> None:
    def declare() -> type[Event]:
        class Placed(Event, type="orders.placed"):
            pass

        return Placed

    declare()
    again = declare()
    assert list(own_registry) == [again]


def test_foreign_views_stand_beside_the_owner(own_registry: Registry[Event]) -> None:
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


# The same name, declared again


def declaring(name: str, *, above: int = 0) -> str:
    return "\n" * above + f"from outrider import Event\nclass {name}(Event, type='orders.again'):\n    total: int\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of its own, as a user has it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "declared_again.py"
    sys.modules.pop("declared_again", None)


def test_the_same_name_at_another_line_of_the_same_file_is_declared_twice(written: Path) -> None:
    """A copied class that still has the old type would silently replace the first one."""
    written.write_text(declaring("Placed") + declaring("Placed"))
    with pytest.raises(
        DeclarationError,
        match=r"orders.again version 1 is declared twice: by declared_again.Placed at line 2 of .*declared_again.py "
        r"and again at line 5",
    ):
        importlib.import_module("declared_again")


def test_the_same_name_twice_in_one_function() -> None:
    class Placed(Event, type="orders.again"):
        pass

    with pytest.raises(DeclarationError, match="declared twice"):

        class Placed(Event, type="orders.again"):  # type: ignore[no-redef]
            pass


def test_the_same_name_in_two_outer_classes_of_one_name(written: Path) -> None:
    inside = (
        "class Outer:\n    import outrider\n    class Placed(outrider.Event, type='orders.again'):\n        n: int\n"
    )
    written.write_text(inside * 2)
    with pytest.raises(DeclarationError, match=r"Outer\.Placed at line 3 of"):
        importlib.import_module("declared_again")


@pytest.mark.parametrize("above", [0, 7])
def test_a_reload_may_move_the_class(written: Path, own_registry: Registry[Event], above: int) -> None:
    written.write_text(declaring("Placed"))
    module = importlib.import_module("declared_again")
    written.write_text(declaring("Placed", above=above))
    importlib.reload(module)
    importlib.reload(module)
    assert list(own_registry) == [module.Placed]


def test_an_import_anew_may_move_the_class(written: Path, own_registry: Registry[Event]) -> None:
    written.write_text(declaring("Placed"))
    importlib.import_module("declared_again")
    del sys.modules["declared_again"]
    written.write_text(declaring("Placed", above=3))
    importlib.invalidate_caches()
    again = importlib.import_module("declared_again")
    assert list(own_registry) == [again.Placed]


@pytest.mark.parametrize("cells", [("<stdin>", "<stdin>"), ("/tmp/ipykernel_7/1.py", "/tmp/ipykernel_7/2.py")])
def test_a_cell_of_a_notebook_may_be_changed_and_run_again(
    own_registry: Registry[Event], cells: tuple[str, str]
) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    for above, cell in enumerate(cells):
        exec(compile(declaring("Placed", above=above), cell, "exec"), space)
    assert list(own_registry) == [space["Placed"]]


def test_a_factory_may_be_called_twice(own_registry: Registry[Event]) -> None:
    def make() -> type[Event]:
        return create_model("Placed", __base__=Event, __cls_kwargs__={"type": "orders.again"}, total=(int, ...))

    make()
    again = make()
    assert list(own_registry) == [again]


# Upcasters and deprecation


def test_upcasters_and_the_end_are_part_of_the_declaration() -> None:
    def up(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    class Placed(Event, type="orders.placed", version=3, upcasters={2: up, 1: dict}, deprecated_after="2027-01-31"):
        pass

    class View(
        Event, type="orders.placed", version=2, foreign=True, upcasters={1: up}, deprecated_after=date(2027, 2, 1)
    ):
        pass

    class Next(Placed, type="orders.placed", version=4):
        pass

    assert list(spec_of(Placed).upcasters.items()) == [(1, dict), (2, up)]
    assert spec_of(Placed).deprecated_after == date(2027, 1, 31)
    assert (spec_of(View).upcasters, spec_of(View).deprecated_after) == ({1: up}, date(2027, 2, 1))
    assert (spec_of(Next).upcasters, spec_of(Next).deprecated_after) == ({}, None)
    assert hash(spec_of(Placed)) != hash(spec_of(Next))


async def later(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 1, "upcasters": {1: dict}}, "upcasters start at 1, but version 1 has nothing older to come from"),
        ({"version": 3, "upcasters": {3: dict}}, "upcasters start at 3: the versions to come from are 1 to 2"),
        ({"version": 3, "upcasters": {0: dict}}, "upcasters start at 0: the versions"),
        ({"version": 3, "upcasters": {True: dict}}, "upcasters start at True: the versions"),
        ({"version": 3, "upcasters": {"1": dict}}, "upcasters start at '1': the versions"),
        ({"version": 2, "upcasters": {1: "v1_to_v2"}}, "the upcaster from 1 is 'v1_to_v2', which cannot be called"),
        ({"version": 2, "upcasters": {1: later}}, "the upcaster from 1, later, is async: decoding cannot wait"),
        ({"version": 2, "upcasters": [dict]}, r"upcasters=\[.*\] is no dict: write upcasters={1: v1_to_v2}"),
        ({"deprecated_after": "soon"}, "deprecated_after='soon' is not a day: write it like '2027-01-31'"),
        ({"deprecated_after": datetime(2027, 1, 31, tzinfo=UTC)}, r"deprecated_after=datetime.* is not a day"),
        ({"deprecated_after": 2027}, "deprecated_after=2027 is not a day"),
        ({"type": None, "upcasters": {1: dict}}, "Bad: upcasters= needs a type="),
        ({"type": None, "deprecated_after": "2027-01-31"}, "Bad: deprecated_after= needs a type="),
    ],
)
def test_upcasters_and_ends_that_cannot_work(
    options: dict[str, Any], message: str, own_registry: Registry[Event]
) -> None:
    with pytest.raises(DeclarationError, match=message):

        class Bad(Event, **({"type": "a.b"} | options)):
            total: int

    assert list(own_registry) == []


# Older versions


def one_to_two(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "cents": payload.pop("total") * 100}


def two_to_three(payload: dict[str, Any]) -> dict[str, Any]:
    return {"cents": payload["cents"], "currency": payload.get("currency", "EUR")}


@pytest.fixture
def newest() -> Any:
    class Newest(Event, type="orders.placed", version=3, upcasters={1: one_to_two, 2: two_to_three}):
        cents: int
        currency: str

    return Newest


@pytest.mark.parametrize(
    ("version", "payload"),
    [
        (1, '{"total": 7}'),
        (2, '{"cents": 700}'),
        (3, '{"cents": 700, "currency": "EUR"}'),
        (4, '{"cents": 700, "currency": "EUR", "more": 1}'),
    ],
)
def test_an_older_version_is_brought_up_and_a_newer_one_is_read_as_it_is(
    newest: Any, version: int, payload: str
) -> None:
    assert envelope(payload, version).decode(newest) == newest(cents=700, currency="EUR")


def test_a_version_without_an_upcaster_is_passed_on_as_it_is() -> None:
    class Placed(Event, type="orders.placed", version=3, upcasters={2: two_to_three}):
        cents: int
        currency: str

    assert envelope('{"cents": 7}', 1).decode(Placed).cents == 7


def test_what_an_upcaster_returns_is_read_like_json() -> None:
    """Also by a strict model, and whatever Python values stand in it."""

    class Placed(
        Event, type="orders.placed", version=2, upcasters={1: lambda _: {"id": UUID(int=7), "at": date(2027, 1, 31)}}
    ):
        model_config = ConfigDict(strict=True)
        id: UUID
        at: date

    assert envelope("{}", 1).decode(Placed) == Placed(id=UUID(int=7), at=date(2027, 1, 31))


@pytest.mark.parametrize("payload", ["[1]", "null", "7", pytest.param("[" * 2000 + "]" * 2000, id="deep")])
def test_only_objects_are_brought_up(newest: Any, payload: str) -> None:
    with pytest.raises(Undecodable, match="is not a Newest"):
        envelope(payload, 1).decode(newest)


@pytest.mark.parametrize(
    ("upcaster", "message"),
    [
        (one_to_two, "its upcaster from version 1, one_to_two, raised KeyError: 'total'"),
        (lambda _: None, "its upcaster from version 1, <lambda>, returned NoneType, not a dict"),
        (lambda _: {"cents": object()}, "its upcaster from version 1, <lambda>, returned a value that is not JSON: "),
        (lambda _: {"cents": "many"}, "is not a Placed: cents: Input should be a valid integer"),
    ],
)
def test_an_upcaster_that_fails(upcaster: Any, message: str) -> None:
    class Placed(Event, type="orders.placed", version=2, upcasters={1: upcaster}):
        cents: int

    with pytest.raises(Undecodable) as caught:
        envelope("{}", 1).decode(Placed)
    assert str(caught.value).startswith("orders.placed version 1 is not a Placed: ")
    assert message in str(caught.value)
