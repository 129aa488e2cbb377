"""What a reader needs that a producer does not promise: kinds, formats, rules, containers, names, versions in between."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import pytest
from pydantic import (
    UUID4,
    AliasChoices,
    AliasPath,
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    NaiveDatetime,
    PastDate,
    SecretStr,
    StringConstraints,
    computed_field,
    field_serializer,
)
from pydantic.dataclasses import dataclass
from tests.contract.making import A_LIST, contract, event, model, settled
from tests.contract.test_compare import Changed, Colour, More, Tree
from typing_extensions import TypedDict

from outrider import Envelope, Event
from outrider.contract import Misfit, MisfitKind, fits, reading


class Pairs(enum.Enum):
    ONE = ("a", 1)


def view(**fields: Any) -> dict[str, Any]:
    return reading(event("View", {"type": "contract.compared", "foreign": True}, fields))


def said(written: Any, read: Any) -> list[str]:
    """Of a field called x."""
    return [str(each) for each in fits(view(x=read), contract(x=written))]


# The three ways not to fit


def test_a_field_that_the_producer_lacks() -> None:
    [wrong] = fits(view(coupon=str), contract(total=int))
    assert wrong == Misfit(MisfitKind.MISSING, "coupon", None, "text")
    assert str(wrong) == "coupon: is read as text, and there is no such field"
    assert fits(view(coupon=(str, "none")), contract(total=int)) == []


def test_a_field_that_is_typed_differently() -> None:
    [wrong] = fits(view(total=int), contract(total=Decimal))
    assert wrong == Misfit(MisfitKind.TYPED, "total", "decimal", "whole number")
    assert str(wrong) == "total: is read as whole number, but published as decimal"
    assert fits(view(total=(int, 0)), contract(total=Decimal)) == [wrong]


def test_a_field_that_older_events_may_lack() -> None:
    [wrong] = fits(view(note=str), contract(note=(str, "")))
    assert (wrong.kind, wrong.path) == (MisfitKind.OPTIONAL, "note")
    assert "some events lack it" in str(wrong)
    assert fits(view(note=(str, "none")), contract(note=(str, ""))) == []


def test_what_the_reader_does_not_name_is_ignored_at_every_level() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int

    assert fits(view(x=Strict), contract(x=model(a=int, b=str), y=int)) == []
    assert fits(view(), contract(x=int)) == []


# Types


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (int, float),
        (int, Decimal),
        (float, Decimal),
        (Annotated[int, Field(ge=1)], Annotated[int, Field(gt=0)]),
        (Annotated[int, Field(gt=0, le=5)], Annotated[int, Field(ge=1, lt=6)]),
        (Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0.5)]),
        (Annotated[int, Field(ge=3)], Annotated[Decimal, Field(ge=Decimal("2.5"))]),
        (Annotated[int, Field(multiple_of=6)], Annotated[int, Field(multiple_of=3)]),
        (Annotated[str, Field(min_length=2, max_length=4)], Annotated[str, Field(min_length=1, max_length=5)]),
        (Annotated[str, Field(pattern="^a$")], Annotated[str, Field(pattern="^a$")]),
        (UUID, str),
        (UUID4, UUID),
        (datetime, str),
        (datetime, AwareDatetime),
        (str, bytes),
        (str, SecretStr),
        (HttpUrl, AnyUrl),
        (HttpUrl, str),
        (Colour, str),
        (Colour, More),
        (Colour, Literal["red", "blue"]),
        (Literal["red"], Colour),
        (Literal["7"], Decimal),
        (Literal[7], Annotated[int, Field(le=7, multiple_of=7)]),
        (Literal["abc"], Annotated[str, Field(max_length=3)]),
        (Colour, Literal["red"] | Literal["blue"]),
        (Literal["a", 1], str | int),
        (int, Any),
        (int, int | None),
        (int | None, int | str | None),
        (int | str, float | str),
        (list[int], list[float]),
        (list[int], set[int]),
        (set[int], list[int]),
        (list[int], tuple[int, ...]),
        (tuple[int, str], list[int | str]),
        (tuple[int, int], tuple[int, ...]),
        (tuple[int, str], tuple[float, str]),
        (Annotated[list[int], Field(min_length=2, max_length=2)], tuple[int, int]),
        (Annotated[list[int], Field(min_length=1)], Annotated[set[int], Field(min_length=1)]),
        (dict[str, int], dict[str, float]),
        (dict[UUID, int], dict[str, int]),
        (dict[int, int], dict[Decimal, int]),
        (dict[Colour, int], dict[More, int]),
        (model(a=int, b=int), dict[str, int]),
        (model(a=int, b=str), dict[str, Any]),
        (model(a=int, b=str), model(b=str)),
        (model(a=int), model(a=float)),
        (model(a=int) | None, model(a=int) | None),
        (Tree, Tree),
        (Tree, model(label=str)),
        (Json[int], int),
    ],
)
def test_what_fits(written: Any, read: Any) -> None:
    assert said(written, read) == []


@pytest.mark.parametrize(
    ("written", "read", "words"),
    [
        (float, int, "x: is read as whole number, but published as number"),
        (Decimal, float, "x: is read as number, but published as decimal"),
        (str, int, "x: is read as whole number, but published as text"),
        (int, str, "x: is read as text, but published as whole number"),
        (int, bool, "x: is read as true or false, but published as whole number"),
        (str, UUID, "x: is read as UUID, but published as text"),
        (str, datetime, "x: is read as date and time, but published as text"),
        (date, datetime, "x: is read as date and time, but published as date"),
        (datetime, NaiveDatetime, "x: is read as date and time, zone naive, but published as date and time"),
        (date, PastDate, "x: is read as date, in the past, but published as date"),
        (UUID, UUID4, "x: is read as UUID of version 4, but published as UUID"),
        (AnyUrl, HttpUrl, "x: is read as URL, at most 2083 characters, schemes http or https, but published as URL"),
        (str, Annotated[str, Field(max_length=5)], "x: is read as text, at most 5 characters, but published as text"),
        (str, Annotated[str, Field(pattern="^a$")], "x: is read as text, like /^a$/, but published as text"),
        (Annotated[str, Field(min_length=1)], Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)],
         "x: is read as text, not empty, after strip_whitespace, but published as text, not empty"),
        (int, Annotated[int, Field(ge=0)], "x: is read as whole number, at least 0, but published as whole number"),
        (Annotated[int, Field(multiple_of=4)], Annotated[int, Field(multiple_of=3)],
         "x: is read as whole number, a multiple of 3, but published as whole number, a multiple of 4"),
        (Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)],
         "x: is read as number, more than 0, but published as number, at least 0"),
        (timedelta, Annotated[timedelta, Field(le=timedelta(hours=1))],
         "x: is read as duration, not after 3600 s, but published as duration"),
        (Decimal, Annotated[Decimal, Field(max_digits=3)],
         "x: is read as decimal, at most 3 digits, but published as decimal"),
        (Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
         Annotated[Decimal, Field(max_digits=5, decimal_places=3)],
         ("x: is read as decimal, at most 3 decimal places, at most 5 digits, "
         "but published as decimal, at most 2 decimal places, at most 5 digits")),
        (More, Colour, 'x: is read as one of "blue", "red", but published as one of "blue", "green", "red"'),
        (str, Colour, 'x: is read as one of "blue", "red", but published as text'),
        (Literal["abcd"], Annotated[str, Field(max_length=3)],
         'x: is read as text, at most 3 characters, but published as "abcd"'),
        (Literal["7"], UUID, 'x: is read as UUID, but published as "7"'),
        (int | None, int, "x: is read as whole number, but published as whole number or null"),
        (int | str, int | None, "x: is read as whole number or null, but published as whole number or text"),
        (Any, int, "x: is read as whole number, but published as anything"),
        (list[int], list[str], "x[]: is read as text, but published as whole number"),
        (list[int], tuple[int, int],
         "x: is read as [whole number, whole number], but published as list of whole number"),
        (tuple[int, str], tuple[int, int], "x[1]: is read as whole number, but published as text"),
        (tuple[int, ...], Annotated[list[int], Field(min_length=1)],
         "x: is read as list of whole number, not empty, but published as list of whole number"),
        (list[int], Annotated[set[int], Field(min_length=2)],
         "x: is read as set of whole number, at least 2, but published as list of whole number"),
        (dict[str, int], dict[UUID, int],
         "x: is read as map from UUID to whole number, but published as map of whole number"),
        (dict[str, int], dict[str, str], "x.*: is read as text, but published as whole number"),
        (dict[More, int], dict[Colour, int],
         ('x: is read as map from (one of "blue", "red") to whole number, '
          'but published as map from (one of "blue", "green", "red") to whole number')),
        (dict[str, int], model(a=int), "x.a: is required, but some events lack it, at least those from before it was added"),
        (model(a=int, b=str), dict[str, int], "x.b: is read as whole number, but published as text"),
        (model(a=int), dict[UUID, int], "x: is read as map from UUID to whole number, but published as Inner"),
        (model(a=int), model(a=str), "x.a: is read as text, but published as whole number"),
        (model(a=int), model(b=int), "x.b: is read as whole number, and there is no such field"),
        (A_LIST[model(a=int)], A_LIST[model(a=str)], "x[].a: is read as text, but published as whole number"),
        (model(a=int) | None, model(a=str) | None, "x.a: is read as text, but published as whole number"),
        (model(a=int) | None, model(a=int), "x: is read as Inner, but published as Inner or null"),
        (int, model(a=int), "x: is read as Inner, but published as whole number"),
        (Tree, Changed, "x.label: is read as whole number, but published as text"),
        (int, Json[int],
         ('x: is read as text, contentMediaType application/json, contentSchema {"type": "integer"}, '
          "but published as whole number")),
    ],
)  # fmt: skip
def test_what_does_not_fit(written: Any, read: Any, words: str) -> None:
    assert said(written, read) == [words]


# Unions with a tag


def tagged(*kinds: str, default: bool = False, **extra: Any) -> Any:
    options = [model(kind.title(), kind=(Literal[kind], kind if default else ...), **extra) for kind in kinds]
    union = options[0]
    for option in options[1:]:
        union = union | option
    return Annotated[union, Field(discriminator="kind")] if len(options) > 1 else union


def test_tagged_unions() -> None:
    assert said(tagged("card", "cash"), tagged("cash", "card", "wire")) == []
    assert said(tagged("card", "cash", default=True), tagged("cash", "card")) == []
    assert said(tagged("card", "cash", default=True), tagged("cash", "card", default=True)) == []
    assert said(tagged("card"), tagged("cash", "card")) == []
    assert said(tagged("card", default=True), tagged("cash", "card")) == [
        "x.kind: is required, but some events lack it, at least those from before it was added"
    ]
    assert said(tagged("card", default=True), tagged("cash", "card", default=True)) == [
        "x.kind: is required, but some events lack it, at least those from before it was added"
    ], "a tag is looked for before any default is"
    assert said(tagged("card", "cash", "wire"), tagged("card", "cash")) == [
        "x: is read as Card or Cash, but published as Card or Cash or Wire"
    ]
    assert said(model(number=int), tagged("card", "cash")) == [
        "x.kind: is read as the field that tells the options apart, and there is no such field"
    ]
    assert said(tagged("card", "cash"), tagged("card", "cash", more=int)) == [
        "x.more: is read as whole number, and there is no such field"
    ]


# Where a field is looked for


def test_names_and_aliases() -> None:
    snapshot = contract(orderId=str, address=model(city=str, tags=tuple[int, str]), note=(str, ""))
    assert fits(view(order=(str, Field(alias="orderId"))), snapshot) == []
    assert fits(view(orderId=(str, Field(alias="order"))), snapshot) == [], "events are validated by name too"
    assert fits(view(a=(str, Field(validation_alias=AliasChoices("id", "orderId")))), snapshot) == []
    assert fits(view(a=(str, Field(validation_alias=AliasPath("address", "city")))), snapshot) == []
    assert fits(view(a=(str, Field(validation_alias=AliasPath("address", "tags", 1)))), snapshot) == []
    assert [
        str(each) for each in fits(view(a=(int, Field(validation_alias=AliasPath("address", "city")))), snapshot)
    ] == ["a: is read as whole number, but published as text"]
    for missing in (
        AliasPath("address", "street"),
        AliasPath("address", "tags", 2),
        AliasPath("note", "city"),
        "elsewhere",
    ):
        [wrong] = fits(view(a=(str, Field(validation_alias=missing))), snapshot)
        assert wrong.kind is MisfitKind.MISSING
    [wrong] = fits(view(a=(str, Field(validation_alias=AliasChoices("id", "note")))), snapshot)
    assert wrong.kind is MisfitKind.OPTIONAL


@pytest.mark.parametrize(
    ("written", "place", "text", "number"),
    [
        (model(a=str) | None, ("x", "a"), [], ["v: is read as whole number, but published as text"]),
        (model(a=str) | model("Other", b=int), ("x", "a"), [], ["v: is read as whole number, but published as text"]),
        (Any, ("x", "a"), ["v: is read as text, but published as anything"],
         ["v: is read as whole number, but published as anything"]),
        (list[str], ("x", -1), ["v: is read as text, but published as anything"],
         ["v: is read as whole number, but published as anything"]),
        (dict[str, Any], ("x", "a", "b"), ["v: is read as text, but published as anything"],
         ["v: is read as whole number, but published as anything"]),
        (Pairs, ("x", 0), ["v: is read as text, but published as anything"],
         ["v: is read as whole number, but published as anything"]),
        (str, ("x", "a"), [], []),
        (dict[str, str], ("x", 0), [], []),
        (list[str], ("x", "a"), [], []),
    ],
)  # fmt: skip
def test_a_path_into_what_cannot_be_followed(
    written: Any, place: tuple[Any, ...], text: list[str], number: list[str]
) -> None:
    def optional(read: Any) -> list[str]:
        looked = view(v=(read | None, Field(default=None, validation_alias=AliasPath(*place))))
        return [str(each).replace(" or null, but", ", but") for each in fits(looked, contract(x=written))]

    assert (optional(str), optional(int)) == (text, number)
    required = view(v=(Any, Field(validation_alias=AliasPath(*place))))
    [wrong] = fits(required, contract(x=written))
    assert wrong.kind is (MisfitKind.OPTIONAL if number else MisfitKind.MISSING)


def test_a_path_into_every_option_of_a_union() -> None:
    looked = view(v=(str, Field(validation_alias=AliasPath("x", "a"))))
    assert fits(looked, contract(x=model(a=str) | model("Other", a=str, b=int))) == []
    assert [str(each) for each in fits(looked, contract(x=model(a=str) | model("Other", a=int)))] == [
        "v: is read as text, but published as text or whole number"
    ]


@pytest.mark.parametrize("kind", ["typed dict", "dataclass"])
def test_a_second_name_in_other_classes(kind: str) -> None:
    alias = Field(validation_alias=AliasChoices("first", "second"), default="")

    class Dict(TypedDict):
        a: NotRequired[Annotated[str, Field(validation_alias=AliasChoices("first", "second"))]]

    @dataclass
    class Data:
        a: str = alias

    [wrong] = said(model(second=int), Dict if kind == "typed dict" else Data)
    assert wrong == "x.first: is read as text, but published as whole number"


@pytest.mark.parametrize(
    ("written", "read", "fit"),
    [
        (settled(str), settled(bytes, val_json_bytes="base64"), False),
        (settled(bytes), settled(bytes, val_json_bytes="hex"), False),
        (settled(bytes, ser_json_bytes="base64"), settled(bytes, val_json_bytes="hex"), False),
        (settled(bytes, ser_json_bytes="hex"), settled(bytes, val_json_bytes="hex"), True),
        (settled(bytes, ser_json_bytes="base64"), settled(bytes, val_json_bytes="base64"), True),
        (settled(bytes, ser_json_bytes="base64"), settled(bytes, ser_json_bytes="base64"), True),
        (settled(str), settled(bytes, ser_json_bytes="base64"), True),
        (settled(Annotated[str, Field(max_length=3)]), settled(Annotated[bytes, Field(max_length=3)]), False),
        (settled(timedelta, ser_json_temporal="seconds"), settled(timedelta), True),
        (settled(timedelta, ser_json_temporal="milliseconds"), settled(timedelta), False),
        (settled(timedelta, ser_json_temporal="milliseconds"), settled(timedelta, val_temporal_unit="milliseconds"), False),
        (settled(timedelta, ser_json_temporal="milliseconds"), settled(float), True),
        (settled(datetime), settled(datetime, val_temporal_unit="milliseconds"), True),
        (settled(datetime, ser_json_temporal="milliseconds"), settled(datetime, val_temporal_unit="milliseconds"), True),
        (settled(datetime, ser_json_temporal="seconds"), settled(datetime, val_temporal_unit="milliseconds"), False),
        (settled(datetime, ser_json_temporal="seconds"), settled(datetime), True),
        (settled(datetime), settled(datetime, ser_json_temporal="seconds"), True),
        (settled(str), settled(Annotated[str, StringConstraints(ascii_only=True)]), False),
    ],
)  # fmt: skip
def test_settings(written: Any, read: Any, fit: bool) -> None:
    assert (said(written, read) == []) is fit


def test_bounds_are_compared_as_they_are_written() -> None:
    assert said(Annotated[Decimal, Field(multiple_of=0.05)], Annotated[Decimal, Field(multiple_of=0.01)]) == []
    assert said(Literal["0.1"], Annotated[Decimal, Field(ge=Decimal("0.1"))]) == []
    nearly = Annotated[Decimal, Field(le=Decimal("99999999999999999.99"))]
    assert said(nearly, Annotated[Decimal, Field(le=Decimal(10**17))]) == []
    assert len(said(Annotated[Decimal, Field(le=Decimal(10**17))], nearly)) == 1


def test_a_model_inside_is_read_by_its_alias_alone_unless_it_says_otherwise() -> None:
    class ByAlias(BaseModel):
        order: str = Field(alias="orderId")

    class ByBoth(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        order: str = Field(alias="orderId")

    written = model(order=str)
    assert [str(each) for each in fits(view(x=ByAlias), contract(x=written))] == [
        "x.orderId: is read as text, and there is no such field"
    ]
    assert said(written, ByBoth) == []


# What is on the wire is not always what is in the class


def test_what_a_producer_writes_is_what_its_serializers_write() -> None:
    class Odd(Event, type="contract.odd"):
        model_config = ConfigDict(ser_json_timedelta="float")
        hidden: int = Field(default=0, exclude=True)
        price: Decimal
        took: timedelta

        @field_serializer("price")
        def cents(self, price: Decimal) -> int:
            return int(price * 100)

        @computed_field
        def total(self) -> int:
            return 7

    from outrider.contract import Contract

    odd = Contract.of(Odd, "shop")
    assert set(odd.object.fields) == {"price", "took", "total"}
    assert fits(view(price=int, total=int, took=float), odd) == []
    assert fits(view(took=timedelta), odd) == [], "pydantic reads seconds too"
    assert [str(each) for each in fits(view(hidden=int), odd)] == [
        "hidden: is read as whole number, and there is no such field"
    ]
    text = Odd(price=Decimal("1.5"), took=timedelta(seconds=3)).model_dump_json(by_alias=True)
    envelope = Envelope(
        id=UUID(int=1), event_type="contract.odd", event_version=1, payload_json=text, source="a", idempotency_key="1"
    )

    class View(Event, type="contract.odd", foreign=True):
        price: int
        took: timedelta

    assert envelope.decode(View) == View(price=150, took=timedelta(seconds=3))


def test_extra_fields_of_the_producer() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert said(Open, model(a=int)) == []
    assert said(Open, dict[str, Any]) == []
    assert said(Open, dict[str, int]) == ["x.*: is read as whole number, but published as anything"]
    assert said(Open, model(a=int, b=int)) == [
        "x.b: is read as whole number, but published as anything",
        "x.b: is required, but some events lack it, at least those from before it was added",
    ]


class Pair(NamedTuple):
    a: int
    b: str = ""


class Numbers(enum.IntEnum):
    ONE = 1


def test_other_kinds_of_class() -> None:
    assert said(Pair, list[int | str]) == []
    assert said(Pair, Pair) == []
    assert said(Numbers, int) == []
    assert said(Annotated[datetime, Field(ge=datetime(2027, 1, 1, tzinfo=UTC))], datetime) == []
