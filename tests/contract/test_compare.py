"""What changed since a snapshot: every kind of change, at every depth, with its words; and what is no change at all."""

from __future__ import annotations

import enum
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AnyUrl, BaseModel, Field, HttpUrl
from tests.contract.making import A_DICT, A_LIST, A_TUPLE, contract, model

from outrider import Event
from outrider.contract import Change, ChangeKind, Contract, compare


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
    assert change == Change(ChangeKind.REMOVED, "b", was="text")
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


def test_required_to_optional_breaks_nobody_and_back_does() -> None:
    [change] = compare(contract(a=int), contract(a=(int, 7)))
    assert (change.kind, str(change), change.breaks) == (ChangeKind.NOW_OPTIONAL, "a: was required, is optional", False)
    [change] = compare(contract(a=(int, 7)), contract(a=int))
    assert (change.kind, str(change), change.breaks) == (ChangeKind.NOW_REQUIRED, "a: was optional, is required", True)


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
        (AnyUrl, HttpUrl, "x: was URL, is URL, at most 2083 characters, schemes http or https"),
        (int, model(a=int), "x: was whole number, is Inner"),
        (model(a=int), dict[str, int], "x: was Inner, is map of whole number"),
    ],
)  # fmt: skip
def test_a_retyped_field(was: Any, now: Any, words: str) -> None:
    [change] = compare(contract(x=was), contract(x=now))
    assert (change.kind, change.breaks) == (ChangeKind.RETYPED, True)
    assert str(change) == words


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

    tree = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | None")  # type: ignore[misc]  # noqa: F821
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
