"""The events that the publish exercise publishes, the values that must survive, and the inputs that must be refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel, Field

from outrider.event import Event
from outrider.payload import DEFAULT_LIMIT, DEPTH


class Placed(Event, type="exercise.placed", version=3, key="order_id"):
    """The plain event of the exercise; its fields have the names of its own metadata on purpose."""

    order_id: str
    type: str = "a field"
    version: int = 99
    key: str = "another field"


class Anything(Event, type="exercise.anything"):
    value: Any


class Colour(Enum):
    RED = "red"


class OrderLine(BaseModel):
    article: str
    price: Decimal
    at: datetime | None = None


class Full(Event, type="exercise.full"):
    """One field of each kind."""

    text: str = "plain"
    texts: dict[str, str] = Field({})
    whole: int = 1
    ratio: float = 0.1
    amount: Decimal = Decimal("9.90")
    at: datetime = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    day: date = date(2024, 2, 29)
    hour: time = time(23, 59, 59, 999999)
    span: timedelta = timedelta(days=-1, microseconds=1)
    who: UUID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
    raw: bytes = b"bytes"
    colour: Colour = Colour.RED
    lines: list[OrderLine] = Field(
        [OrderLine(article="a", price=Decimal("0.10")), OrderLine(article="b", price=Decimal(2))]
    )
    numbers: list[int | None] = Field([1, None, -3])
    pair: tuple[int, str] = (1, "one")
    tags: frozenset[str] = frozenset({"a", "b"})
    by_number: dict[int, str] = Field({1: "one", 2: "two"})
    nothing: str | None = None
    anything: Any = Field({"deep": [{"er": [True, False, None, 0, "", [], {}]}]})


_naive = datetime(2024, 1, 1)  # noqa: DTZ001


class Unregistered(Event):
    """Has no type, so it is not an event that can be published."""


class PlacedElsewhere(Event, type="elsewhere.placed", foreign=True):
    order_id: str


def _at(*when: int, hours: float = 0) -> datetime:
    return datetime(*when, tzinfo=timezone(timedelta(hours=hours)))  # type: ignore[misc, arg-type]


TEXTS = (
    "",
    "🦊👩‍👩‍👧‍👦 e\u0301 é שלום مرحبا 漢字",
    "\u202edirection\u202c \u200b\ufeff\uffff\U0010ffff",
    "quotes \" ' ` { } , [ ] NULL null \\ \\\\ \\u0000 %s %(id)s $1 ? :name /*schema*/ ; --",
    "\t\r\n\x01\x1f\x7f\x85\u2028",
    "long " * 20_000,
)
SURVIVORS = (
    ("every_kind", Full()),
    *((f"text_{n}", Full(text=text, texts={text[:99]: text})) for n, text in enumerate(TEXTS)),
    *((f"integer_of_{len(str(n))}", Full(whole=n, anything=[n])) for n in (10**30, -(2**63) - 1, 2**63, 10**3000)),
    *((f"float_{n}", Full(ratio=n)) for n in (1e23, -1e308, 5e-324, 2.0**53, 0.1 + 0.2)),
    *((f"decimal_{n:.9}", Full(amount=Decimal(n))) for n in ("0.10", "1E+30", "-0.000", "1E-400", "123" * 40)),
    ("time_east", Full(at=_at(2024, 7, 1, hours=5.75))),
    ("time_west", Full(at=_at(2024, 7, 1, hours=-11))),
    ("time_first", Full(at=_at(1, 1, 1))),
    ("time_last", Full(at=_at(9999, 12, 31))),
)
"""Each must be read back equal."""


@dataclass(frozen=True, slots=True)
class RefusedCase:
    """An input that publish refuses: which field the refusal names, and a part of its rule."""

    name: str
    event: Event
    field: str
    rule: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def _nested(levels: int) -> Any:
    return [_nested(levels - 1)] if levels else "core"


def _payload(name: str, value: Any, path: str, rule: str) -> RefusedCase:
    return RefusedCase(name, Anything(value=value), path, rule)


def _option(name: str, rule: str, **options: Any) -> RefusedCase:
    return RefusedCase(name, Placed(order_id="1"), next(iter(options)), rule, options)


REFUSED = (
    _payload("nan", float("nan"), "value", "nan"),
    _payload("infinity", [0.0, float("inf")], "value[1]", "inf"),
    _payload("negative_infinity", {"a": float("-inf")}, "value.a", "-inf"),
    _payload("decimal_nan", Decimal("NaN"), "value", "finite"),
    _payload("decimal_infinity", Decimal("-Infinity"), "value", "finite"),
    _payload("nul", {"a": ["x", "b\x00"]}, "value.a[1]", r"\u0000 at position 1"),
    _payload("nul_in_a_key", {"a\x00": 1}, "value", r"a key that contains \u0000"),
    _payload("lone_surrogate", "ab\ud83e", "value", r"surrogate \ud83e at position 2"),
    _payload("lone_surrogate_in_a_key", {"\udc00": 1}, "value", r"a key that contains the lone surrogate \udc00"),
    _payload(
        "naive_datetime_in_a_model", [OrderLine(article="a", price=Decimal(1), at=_naive)], "value[0].at", "naive"
    ),
    _payload(
        "too_deep", {"a": _nested(DEPTH)}, "value.a" + "[0]" * 17 + "[0…" + ("[0]" * 40)[-40:], "more than 64 levels"
    ),
    _payload("too_large", "x" * DEFAULT_LIMIT, "payload", f"the limit is {DEFAULT_LIMIT:,}"),
    _payload("huge_integer", 10**5000, "value", "digits"),
    _payload("not_json", object(), "payload", "cannot be written as JSON"),
    RefusedCase("mistyped", Placed.model_construct(order_id=cast(str, 7)), "payload", "cannot be written as JSON"),
    RefusedCase("unregistered", Unregistered(), "event", "not registered"),
    RefusedCase("foreign", PlacedElsewhere(order_id="1"), "event", "foreign view"),
    RefusedCase("not_an_event", cast(Any, {"order_id": "1"}), "event", "not an instance of an Event"),
    RefusedCase("a_class", cast(Any, Placed), "event", "not an instance of an Event"),
    RefusedCase("empty_key_field", Placed(order_id=""), "key", "empty"),
    _option("empty_key", "empty", key=""),
    _option("long_key", "at most 512", key="é" * 257),
    _option("nul_in_the_key", r"\u0000", key="a\x00"),
    _option("key_of_another_type", "UUID, not str", key=UUID(int=1)),
    _option("empty_idempotency_key", "empty", idempotency_key=""),
    _option("long_idempotency_key", "at most 512", idempotency_key="k" * 513),
    _option("surrogate_in_the_idempotency_key", "surrogate", idempotency_key="\ud800"),
    _option("empty_workspace", "empty", workspace_id=""),
    _option("long_workspace", "at most 255", workspace_id="w" * 256),
    _option("long_aggregate_kind", "at most 200", aggregate_kind="a" * 201),
    _option("bad_target", "'Bad target' is not", target="Bad target"),
    _option("target_of_another_type", "int, not str", target=7),
    _option("unknown_content_class", "not one of public", content_class="secret"),
    _option("bad_channel_class", "'No' is not a lower-case word", channel_class="No"),
    _option("long_channel_class", "at most 63", channel_class="c" * 60),
    _option("large_entity_version", "64 bits", entity_version=2**63),
    _option("fractional_entity_version", "float, not int", entity_version=1.5),
    _option("naive_occurred_at", "naive", occurred_at=_naive),
    _option("date_as_occurred_at", "date, not datetime", occurred_at=date(2024, 1, 1)),
    _option("occurred_at_too_late", "years 1 to 9999", occurred_at=_at(9999, 12, 31, 23, hours=-1)),
    _option("occurred_at_too_early", "years 1 to 9999", occurred_at=_at(1, 1, 1, hours=1)),
)
