"""What changed since a snapshot: every kind of change, at every depth, with its words; and what is no change at all."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    SecretStr,
    StringConstraints,
    WrapSerializer,
    computed_field,
    model_serializer,
)
from pydantic_core import MISSING
from tests.contract.making import A_DICT, A_LIST, A_TUPLE, contract, model, settled
from typing_extensions import TypedDict

from outrider import Event
from outrider.contract import ChangeKind, Contract, ContractChange, compare


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class More(enum.Enum):
    BLUE = "blue"
    RED = "red"
    GREEN = "green"


class Renamed(enum.StrEnum):
    BLAU = "blue"
    ROT = "red"


def said(was: Any, now: Any) -> list[str]:
    """Of a field called x, before and after."""
    return [str(change) for change in compare(contract(x=was), contract(x=now))]


# Fields of the event itself


def test_a_removed_field() -> None:
    [change] = compare(contract(a=int, b=str), contract(a=int))
    assert change == ContractChange(ChangeKind.REMOVED, "b", was="text")
    assert change.breaks
    assert str(change) == "b: was text, is gone"


def test_a_new_required_field() -> None:
    [change] = compare(contract(a=int), contract(a=int, b=UUID))
    assert (change.kind, change.path, change.now, change.breaks) == (ChangeKind.NEW_REQUIRED, "b", "UUID", True)
    assert str(change) == "b: is new and required, UUID"


@pytest.mark.parametrize("default", [(int, 7), (int, Field(default_factory=lambda: 7)), (int | None, None)])
def test_a_new_optional_field_breaks_nobody(default: Any) -> None:
    [change] = compare(contract(a=int), contract(a=int, b=default))
    assert (change.kind, change.path, change.breaks) == (ChangeKind.NEW_OPTIONAL, "b", False)


def test_a_default_changes_nothing_on_the_wire_and_without_it_older_events_may_lack_the_field() -> None:
    assert compare(contract(a=int), contract(a=(int, 7))) == []
    [change] = compare(contract(a=(int, 7)), contract(a=int))
    assert (change.kind, str(change), change.breaks) == (ChangeKind.NOW_REQUIRED, "a: was optional, is required", True)


class Priced(TypedDict):
    price: int


class PricedOrNot(TypedDict):
    price: NotRequired[int]


@pytest.mark.parametrize(
    ("was", "now", "path"),
    [
        (list[Priced], list[PricedOrNot], "x[].price"),
        (str, (str, Field(exclude_if=lambda value: value == "")), "x"),
        (str, (str, Field(default="", alias="x", exclude_if=lambda value: value == "")), "x"),
        (int, (int | MISSING, MISSING), "x"),
    ],
)
def test_a_field_that_may_now_be_left_out_breaks(was: Any, now: Any, path: str) -> None:
    [change] = compare(contract(x=was), contract(x=now))
    assert (change.kind, change.breaks) == (ChangeKind.NOW_ABSENT, True)
    assert str(change) == f"{path}: was in every event, may be left out"
    assert said(now, now) == []
    [change] = compare(contract(x=now), contract(x=was))
    assert change.kind is ChangeKind.NOW_REQUIRED


def test_a_computed_field_that_may_be_left_out() -> None:
    class Odd(BaseModel):
        @computed_field
        def total(self) -> int:
            return 7

    class Gone(BaseModel):
        @computed_field(exclude_if=lambda value: value == 7)
        def total(self) -> int:
            return 7

    assert said(Odd, Gone) == ["x.total: was in every event, may be left out"]


@dataclasses.dataclass
class Two:
    a: int
    b: int


@dataclasses.dataclass
class OneOfThemNeverWritten:
    a: int
    b: dataclasses.InitVar[int] = 3


def test_an_init_var_is_never_written() -> None:
    assert said(Two, OneOfThemNeverWritten) == ["x.b: was whole number, is gone"]


def test_the_ordering_key() -> None:
    [change] = compare(contract({"key": "a"}, a=str, b=str), contract({"key": "b"}, a=str, b=str))
    assert (change.kind, change.breaks) == (ChangeKind.KEY, True)
    assert str(change) == "the ordering key: was a, is b"
    [change] = compare(contract({"key": "a"}, a=str), contract(a=str))
    assert str(change) == "the ordering key: was a, is none"


def test_the_key_is_named_as_on_the_wire() -> None:
    was = contract({"key": "order_id"}, order_id=(str, Field(alias="orderId")))
    now = contract({"key": "order"}, order=(str, Field(alias="orderId")))
    assert was.key == "orderId"
    assert compare(was, now) == []


def test_the_producer_and_the_end_are_no_shape_but_the_snapshot_has_them() -> None:
    was = contract(a=int)
    now = Contract({**contract({"deprecated_after": "2027-01-31"}, a=int).schema})
    moved = Contract({**now.schema, "x-outrider": {**now.schema["x-outrider"], "producer": "store"}})
    changes = compare(was, moved)
    assert [str(change) for change in changes] == [
        "the producer: was shop, is store",
        "deprecated_after: was none, is 2027-01-31",
    ]
    assert not any(change.breaks for change in changes)


# Types


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (str, str | None, "x: was text, is text or null"),
        (str | None, str, "x: was text or null, is text"),
        (int, str, "x: was whole number, is text"),
        (int, float, "x: was whole number, is number"),
        (Decimal, float, "x: was decimal, is number"),
        (str, UUID, "x: was text, is UUID"),
        (date, datetime, "x: was date, is date and time"),
        (bool, int, "x: was true or false, is whole number"),
        (timedelta, int, "x: was duration, is whole number"),
        (Any, int, "x: was anything, is whole number"),
        (int, list[int], "x: was whole number, is list of whole number"),
        (list[int], set[int], "x: was list of whole number, is set of whole number"),
        (list[int], dict[str, int], "x: was list of whole number, is map of whole number"),
        (tuple[int, str], tuple[int, str, int],
         "x: was [whole number, text], is [whole number, text, whole number]"),
        (dict[str, int], dict[UUID, int], "x: was map of whole number, is map from UUID to whole number"),
        (dict[str, int], dict[int, int], "x: was map of whole number, is map from text (integer) to whole number"),
        (dict[Colour, int], dict[More, int],
         ('x: was map from (one of "blue", "red") to whole number, '
          'is map from (one of "blue", "green", "red") to whole number')),
        (Colour, More, 'x: was one of "blue", "red", is one of "blue", "green", "red"'),
        (More, Colour, 'x: was one of "blue", "green", "red", is one of "blue", "red"'),
        (Literal["a"], Literal["a", "b"], 'x: was "a", is one of "a", "b"'),
        (Literal[1], Literal["1"], 'x: was 1, is "1"'),
        (Colour, str, 'x: was one of "blue", "red", is text'),
        (int | str, int | str | None, "x: was whole number or text, is whole number or text or null"),
        (Annotated[str, Field(max_length=5)], Annotated[str, Field(max_length=6)],
         "x: was text, at most 5 characters, is text, at most 6 characters"),
        (int, Annotated[int, Field(ge=0)], "x: was whole number, is whole number, at least 0"),
        (Decimal, Annotated[Decimal, Field(gt=0)], "x: was decimal, is decimal, more than 0"),
        (Decimal, Annotated[Decimal, Field(max_digits=9, decimal_places=2)],
         "x: was decimal, is decimal, at most 2 decimal places, at most 9 digits"),
        (date, Annotated[date, Field(ge=date(2027, 1, 1))], "x: was date, is date, not before 2027-01-01"),
        (list[int], Annotated[list[int], Field(min_length=1)],
         "x: was list of whole number, is list of whole number, not empty"),
        (str, Annotated[str, Field(pattern="^a$")], "x: was text, is text, like /^a$/"),
        (Annotated[Decimal, Field(le=Decimal("99999999999999999.99"))], Annotated[Decimal, Field(le=Decimal(10**17))],
         "x: was decimal, at most 99999999999999999.99, is decimal, at most 100000000000000000"),
        (Annotated[timedelta, Field(ge=timedelta(seconds=1234567))],
         Annotated[timedelta, Field(ge=timedelta(seconds=1234567.25))],
         "x: was duration, not before 1234567 s, is duration, not before 1234567.25 s"),
        (bytes, Annotated[bytes, Field(max_length=5)], "x: was bytes, is bytes, at most 5 bytes"),
        (Annotated[str, StringConstraints(ascii_only=True)], str, "x: was text, in ASCII, is text"),
        (AnyUrl, HttpUrl, "x: was URL, is URL, at most 2083 characters, schemes http or https"),
        (int, model(a=int), "x: was whole number, is Inner"),
        (model(a=int), dict[str, int], "x: was Inner, is map of whole number"),
    ],
)  # fmt: skip
def test_a_retyped_field(was: Any, now: Any, words: str) -> None:
    [change] = compare(contract(x=was), contract(x=now))
    assert (change.kind, change.breaks) == (ChangeKind.RETYPED, True)
    assert str(change) == words


# Settings that change what is written


def with_settings(annotation: Any, **settings: Any) -> Contract:
    """Of a model inside, since settings apply where they stand."""
    return contract(x=settled(annotation, **settings))


def cents(value: Decimal) -> int:
    return int(value * 100)


@pytest.mark.filterwarnings("ignore:`json_encoders` is deprecated")
@pytest.mark.parametrize(
    ("annotation", "was", "now", "words"),
    [
        (Decimal, {}, {"json_encoders": {Decimal: cents}}, "was decimal, is decimal, serializer unknown"),
        (Decimal | None, {}, {"json_encoders": {Decimal: cents}},
         "was decimal or null, is decimal, serializer unknown or null"),
        (datetime, {}, {"ser_json_temporal": "seconds"}, "was date and time, is number (date-time), in seconds"),
        (datetime, {"ser_json_temporal": "seconds"}, {"ser_json_temporal": "milliseconds"},
         "was number (date-time), in seconds, is number (date-time), in milliseconds"),
        (timedelta, {"ser_json_timedelta": "float"}, {"ser_json_temporal": "milliseconds"},
         "was number (duration), in seconds, is number (duration), in milliseconds"),
        (timedelta, {}, {"ser_json_timedelta": "float"}, "was duration, is number (duration), in seconds"),
        (bytes, {}, {"ser_json_bytes": "base64"}, "was bytes, is text (base64url)"),
        (bytes, {}, {"ser_json_bytes": "hex"}, "was bytes, is text (hex)"),
        (bytes, {"ser_json_bytes": "base64"}, {"ser_json_bytes": "hex"}, "was text (base64url), is text (hex)"),
    ],
)  # fmt: skip
def test_a_setting_is_a_change_where_it_applies(annotation: Any, was: Any, now: Any, words: str) -> None:
    [change] = compare(with_settings(annotation, **was), with_settings(annotation, **now))
    assert (str(change), change.breaks) == (f"x.t: {words}", True)
    assert compare(with_settings(annotation, **now), with_settings(annotation, **now)) == []
    assert compare(with_settings(str, **was), with_settings(str, **now)) == [], "it says nothing about text"


@pytest.mark.parametrize("settings", [{"ser_json_timedelta": "float"}, {"ser_json_temporal": "seconds"}])
def test_two_settings_that_write_the_same(settings: Any) -> None:
    assert compare(with_settings(timedelta, ser_json_timedelta="float"), with_settings(timedelta, **settings)) == []


def test_what_is_written_is_no_matter_of_how_schemas_are_made() -> None:
    was = with_settings(Annotated[int, Field(exclude=True)])
    assert (
        compare(was, with_settings(Annotated[int, Field(exclude=True)], json_schema_mode_override="validation")) == []
    )


def test_a_serializer_that_does_not_say_what_it_writes() -> None:
    def unknown(value):  # type: ignore[no-untyped-def]
        return value

    class Node(BaseModel):
        inside: Node | None = None

    for kind in (int, int | None, Colour, list[int], Node, model(a=int), model(a=int) | model("Other", b=int)):
        [change] = compare(contract(x=kind), contract(x=Annotated[kind, PlainSerializer(unknown)]))
        assert change.kind is ChangeKind.RETYPED
        assert str(change).endswith(", serializer unknown")
        assert said(Annotated[kind, PlainSerializer(unknown)], Annotated[kind, WrapSerializer(lambda v, h: h(v))]) == []


def test_a_model_serializer_that_does_not_say_what_it_writes_wherever_the_model_is() -> None:
    class Plain(BaseModel):
        a: int
        again: list[Plain] = []

    class Odd(BaseModel):
        a: int
        again: list[Odd] = []

        @model_serializer(mode="wrap")
        def less(self, handler):  # type: ignore[no-untyped-def]
            return handler(self)

    changes = compare(contract(x=Plain, y=list[Plain]), contract(x=Odd, y=list[Odd]))
    assert [change.path for change in changes] == ["x", "y[]"]
    assert [str(change) for change in compare(contract(x=Odd), contract(x=Odd))] == []


def test_the_types_of_pydantic_and_the_library_are_written_by_known_functions() -> None:
    found = contract(a=Path, b=SecretStr, c=deque[int], d=IPv4Address, e=AnyUrl, f=Sequence[int], g=set[int]).text
    assert "x-serializer" not in found


def test_a_json_text_is_read_not_written() -> None:
    """Both are written as an object. That the first cannot read what it writes is said when somebody subscribes to it."""
    assert said(Json[dict[str, int]], dict[str, int]) == []


# Inside


def test_inside_a_model() -> None:
    assert said(model(a=int, b=str), model(a=str, c=(int, 0))) == [
        "x.a: was whole number, is text",
        "x.b: was text, is gone",
        "x.c: is new and optional, whole number",
    ]


@pytest.mark.parametrize(
    ("around", "path"),
    [
        (lambda inner: A_LIST[inner], "x[].a"),
        (lambda inner: A_DICT[str, inner], "x.*.a"),
        (lambda inner: A_TUPLE[int, inner], "x[1].a"),
        (lambda inner: inner | None, "x.a"),
        (lambda inner: A_LIST[inner | None], "x[].a"),
        (lambda inner: A_DICT[str, A_LIST[inner]], "x.*[].a"),
        (lambda inner: int | inner, "x.a"),
        (lambda inner: model("Outer", inner=inner), "x.inner.a"),
    ],
)
def test_inside_of_anything(around: Any, path: str) -> None:
    assert said(around(model(a=int)), around(model(a=str))) == [f"{path}: was whole number, is text"]
    assert said(around(model(a=int)), around(model(a=int))) == []


def test_an_option_more_or_less() -> None:
    card, cash, wire = model("Card", number=str), model("Cash", given=int), model("Wire", iban=str)
    assert said(card | cash, card | cash | wire) == ["x: was Card or Cash, is Card or Cash or Wire"]
    assert said(card | cash, cash | card) == []


def test_options_that_are_told_apart_by_a_tag() -> None:
    def union(number: Any, given: Any = int, tag: str = "kind") -> Any:
        card = model("Card", **{tag: Literal["card"]}, number=number)
        cash = model("Cash", **{tag: Literal["cash"]}, given=given)
        return Annotated[card | cash, Field(discriminator=tag)]

    assert said(union(str), union(str)) == []
    assert said(union(str), union(int)) == ['x(kind "card").number: was text, is whole number']
    assert said(union(str), union(int, given=str)) == [
        'x(kind "card").number: was text, is whole number',
        'x(kind "cash").given: was whole number, is text',
    ]
    assert said(union(str), union(str, tag="type")) == ["x: was Card or Cash, is Card or Cash"]


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


class Renamed_Tree(BaseModel):  # noqa: N801
    label: str
    children: list[Renamed_Tree] = []


class Changed(BaseModel):
    label: int
    children: list[Changed] = []


def test_recursive_models() -> None:
    assert said(Tree, Renamed_Tree) == []
    assert said(Tree, Changed) == ["x.label: was text, is whole number"]


def test_a_recursive_event() -> None:
    class Node(Event, type="contract.node"):
        """A node."""

        label: str
        inside: Node | None = None

    node = Contract.of(Node, "shop")
    assert node.description == "A node."
    assert compare(node, Contract.read(node.text)) == []
    assert {name: field.required for name, field in node.object.fields.items()} == {"label": True, "inside": False}


def test_a_recursive_alias() -> None:
    from typing_extensions import TypeAliasType

    tree = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | None")  # type: ignore[misc]
    assert said(tree, tree) == []
    [words] = said(tree, int)
    assert words == "x: was map of Json or list of Json or text or null, is whole number"


# What is no change


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ((int, Field(title="A", description="a", examples=[1])), int),
        ((int, 7), (int, 8)),
        ((int, 7), (int, Field(default_factory=int))),
        (Colour, Renamed),
        (Literal["a", "b"], Literal["b", "a"]),
        (int | str, str | int),
        (model("A", a=int), model("B", a=int)),
        (Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0.0)]),
        (list[int], tuple[int, ...]),
    ],
)
def test_what_is_not_on_the_wire_is_no_change(was: Any, now: Any) -> None:
    assert said(was, now) == []


def test_the_order_of_the_fields_is_no_change() -> None:
    one, other = contract(a=int, b=str), contract(b=str, a=int)
    assert compare(one, other) == []
    assert one.text == other.text


def test_a_docstring_is_no_change() -> None:
    one = contract(a=int)
    assert compare(one, Contract({**one.schema, "description": "Another."})) == []
