"""The screen: it never passes what the full check refuses, and it does not ask for the full check of ordinary events."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, computed_field, create_model, field_serializer

from outrider import Event, PublishRefused, payload
from outrider.payload import encode
from outrider.payload_screen import screen_of


class Colour(StrEnum):
    RED = "red"
    NUL = "\x00"


class Size(IntEnum):
    BIG = 1


class Odd(Enum):
    NAN = math.nan
    PLAIN = "plain"


class Item(BaseModel):
    name: str
    price: Decimal = Decimal(1)

    @cached_property
    def cached(self) -> float:
        return math.nan


class Special(Item):
    hidden: float = math.nan


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 0


class Tree(BaseModel):
    label: str = ""
    left: Optional[Tree] = None  # noqa: UP045
    right: list[Tree] = []


class Written(BaseModel):
    """What is written is not what it holds."""

    secret: str

    @field_serializer("secret")
    def mask(self, _: str) -> str:
        return "***"


class Computed(BaseModel):
    n: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def nul(self) -> str:
        return "\x00" * (self.n == 7)


@dataclass
class Pair:
    a: float
    b: str


LEAVES: list[Any] = [
    str, int, bool, float, bytes, Decimal, datetime, date, time, timedelta, UUID, Any, Colour, Size, Odd, Item, Special,
    Open, Tree, Written, Computed, Pair, Literal["a", 1, None], Annotated[str, PlainSerializer(len)],
    Annotated[int, Field(ge=0)], object,
]  # fmt: skip


def shapes(leaf: Any) -> list[Any]:
    alone = [leaf] if leaf is Any else [leaf, leaf | None, leaf | str]
    sequences = [list[leaf], frozenset[leaf], deque[leaf], tuple[leaf, ...], tuple[leaf, int]]
    return [*alone, *sequences, dict[str, leaf], dict[int, leaf], dict[str, list[leaf]]]


TYPES: list[Any] = [shape for leaf in LEAVES for shape in shapes(leaf)]
AWARE = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(seconds=61)), timezone(timedelta(hours=2))]))
LONG = st.sampled_from([3900, 3912, 3913, 3914, 3950]).map(lambda digits: 10**digits)
TEXT = st.text(max_size=5) | st.sampled_from(["\x00", "\ud800", "\\u0000", "a\\\x00"]) | LONG.map(str)
NAMES = st.text(max_size=5) | st.just("\x00")
"""Without lone surrogates, which pydantic does not take."""
SCALARS = st.one_of(
    TEXT, st.integers(), st.booleans(), st.none(), st.floats(), st.binary(max_size=3), st.decimals(), AWARE, st.datetimes(),
    st.dates(), st.times(), st.timedeltas(), st.uuids(), st.sampled_from([*Colour, *Size, *Odd]), LONG,
    LONG.map(lambda n: -n),
)  # fmt: skip


def tree(depth: int) -> Tree:
    return Tree(label="x", left=tree(depth - 1)) if depth else Tree()


def with_cached(name: str) -> Item:
    item = Item(name=name)
    assert math.isnan(item.cached)
    return item


MODELS = st.one_of(
    st.builds(Item, name=NAMES, price=st.decimals(allow_nan=False, allow_infinity=False)),
    st.builds(with_cached, st.just("x")),
    st.builds(Item.model_construct, name=SCALARS, price=SCALARS),
    st.builds(Item.model_construct, name=TEXT),
    st.builds(Special, name=NAMES, hidden=st.floats()),
    st.builds(Open, n=st.integers(), more=SCALARS),
    st.builds(Written, secret=NAMES),
    st.builds(Computed, n=st.sampled_from([1, 7])),
    st.builds(tree, st.sampled_from([0, 1, 30, 33, 62, 63, 64, 65, 66])),
    st.builds(Pair, st.floats(), TEXT),
)
KEYS = TEXT | st.integers() | st.sampled_from(["1", 1, 1.5])
INNER = SCALARS | st.lists(SCALARS, max_size=2)
VALUES = (
    st.dictionaries(KEYS, INNER, max_size=2)
    | st.lists(INNER | MODELS, max_size=2)
    | st.recursive(
        SCALARS | MODELS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=2).map(tuple),
            st.lists(inner, max_size=2).map(deque),
            st.frozensets(TEXT | st.integers() | st.floats() | AWARE | st.dates(), max_size=3),
            st.lists(inner, max_size=2).map(iter),
            st.dictionaries(KEYS, inner, max_size=3),
        ),
        max_leaves=6,
    )
)


def outcome(event: Event, text_of: Callable[[Event], bytes | None]) -> bytes | tuple[str, str] | None:
    try:
        return text_of(event)
    except PublishRefused as refused:
        return refused.field, refused.rule
    except Exception as error:
        return type(error).__name__, str(error)


class Unregistered(Event):
    """Without a type: the base of the models below."""


@cache
def model_of(place: int, exclude: bool) -> Any:
    return create_model("Some", __base__=Unregistered, field=(TYPES[place], Field(exclude=exclude)), other=(str, "x"))


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, len(TYPES) - 1), st.sampled_from([False, False, False, True]), VALUES, st.booleans())
def test_what_the_screen_passes_the_full_check_passes_with_the_same_text(
    place: int, exclude: bool, value: object, validated: bool
) -> None:
    """Also of events that pydantic has not validated, whose values have any type."""
    model = model_of(place, exclude)
    if validated:
        try:
            event = model.model_validate({"field": value})
        except Exception:
            return
    else:
        event = model.model_construct(field=value)
    passed = payload._written(event)
    if passed is not None:
        assert outcome(event, lambda each: payload._checked(each, "a.b")) == passed


class Line(BaseModel):
    sku: str
    count: int
    price: Decimal
    kind: Literal["new", "used"]


class Order(Event, type="screen.order", key="order_id"):
    order_id: UUID
    placed_at: datetime
    total: float
    colour: Size | None = None
    note: str | None = None
    lines: list[Line]
    tags: dict[str, str] | None = None
    tree: Tree = Tree()


def order(**changed: Any) -> Order:
    line = Line(sku="a", count=1, price=Decimal("1.5"), kind="new")
    given: dict[str, Any] = {"order_id": UUID(int=1), "placed_at": datetime.now(UTC), "total": 1.5, "lines": [line] * 3}
    return Order(**given | changed)


def test_an_ordinary_event_needs_no_full_check() -> None:
    event = order(note="x" * 10_000, tree=tree(10))
    assert not screen_of(Order)(event)
    assert payload._written(event) == payload._checked(event, "a.b")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"note": "\x00"}, "note"),
        ({"note": "\ud800"}, "note"),
        ({"total": math.nan}, "total"),
        ({"placed_at": datetime(2026, 1, 1)}, "placed_at"),  # noqa: DTZ001
        ({"tags": {"a": "\x00"}}, "tags.a"),
        ({"tags": {"\ud800": "a"}}, "tags"),
        ({"tags": {"\x00": "a"}}, "tags"),
        ({"tree": tree(70)}, "tree" + ".left" * 64),
        ({"lines": [Line.model_construct(sku="a", count=10**3950, price=Decimal(1), kind="new")]}, "lines[0].count"),
    ],
)
def test_the_refusal_names_the_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(PublishRefused) as refused:
        encode(order(**changed), "a.b")
    assert refused.value.field == (field if len(field) <= 120 else f"{field[:60]}…{field[-40:]}")
