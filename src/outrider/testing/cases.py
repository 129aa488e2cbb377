"""The events that the publish exercise publishes, the values that must survive, and the inputs that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from outrider import names
from outrider.event import Event
from outrider.payload import DEFAULT_LIMIT, DEPTH
from outrider.publish import PublishOptions


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


class Line(BaseModel):
    article: str
    price: Decimal
    at: datetime | None = None


class Basket(BaseModel):
    lines: list[Line]


class Shipped(Event, type="exercise.shipped"):
    basket: Basket


class Full(Event, type="exercise.full"):
    """One field of each kind."""

    text: str
    texts: dict[str, str]
    whole: int
    ratio: float
    amount: Decimal
    at: datetime
    day: date
    hour: time
    span: timedelta
    who: UUID
    raw: bytes
    colour: Colour
    basket: Basket
    numbers: list[int | None]
    pair: tuple[int, str]
    tags: frozenset[str]
    by_number: dict[int, str]
    nothing: str | None
    anything: Any


class Unregistered(Event):
    """Has no type, so it is not an event that can be published."""


class PlacedElsewhere(Event, type="elsewhere.placed", foreign=True):
    order_id: str


def full(**changes: Any) -> Full:
    values: dict[str, Any] = {
        "text": "plain",
        "texts": {},
        "whole": 1,
        "ratio": 0.1,
        "amount": Decimal("9.90"),
        "at": datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "hour": time(23, 59, 59, 999999),
        "span": timedelta(days=-1, microseconds=1),
        "who": UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
        "raw": b"bytes",
        "colour": Colour.RED,
        "basket": Basket(lines=[Line(article="a", price=Decimal("0.10")), Line(article="b", price=Decimal(2))]),
        "numbers": [1, None, -3],
        "pair": (1, "one"),
        "tags": frozenset({"a", "b"}),
        "by_number": {1: "one", 2: "two"},
        "nothing": None,
        "anything": {"deep": [{"er": [True, False, None, 0, "", [], {}]}]},
    }
    return Full(**(values | changes))


TEXTS = (
    "",
    "🦊👩‍👩‍👧‍👦 e\u0301 é שלום مرحبا 漢字",
    "\u202edirection\u202c \u200b\ufeff\uffff\U0010ffff",
    "quotes \" ' ` { } , [ ] NULL null \\ \\\\ \\u0000 %s %(id)s $1 ? :name /*schema*/ ; --",
    "\t\r\n\x01\x1f\x7f\x85\u2028",
    "long " * 20_000,
)
SURVIVORS: tuple[tuple[str, Callable[[], Full]], ...] = (
    ("every_kind_of_field", full),
    *((f"text_{n}", lambda text=text: full(text=text, texts={text[:99]: text})) for n, text in enumerate(TEXTS)),
    *((f"integer_{n:.0e}", lambda n=n: full(whole=n, anything=[n])) for n in (10**30, -(2**63) - 1, 2**63, 10**3000)),
    *((f"float_{n}", lambda n=n: full(ratio=n)) for n in (1e23, -1e308, 5e-324, 2.0**53, 0.1 + 0.2)),
    *((f"decimal_{n}", lambda n=n: full(amount=Decimal(n))) for n in ("0.10", "1E+30", "-0.000", "1E-400", "123" * 40)),
    *(
        (f"datetime_{n}", lambda at=at: full(at=at))
        for n, at in enumerate(
            (
                datetime(2024, 7, 1, 9, tzinfo=timezone(timedelta(hours=5, minutes=45))),
                datetime(2024, 7, 1, 9, tzinfo=timezone(-timedelta(hours=11))),
                datetime(1, 1, 1, tzinfo=UTC),
                datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            )
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Refused:
    """An input that publish refuses: which field the refusal names, and a word of its rule."""

    name: str
    event: Callable[[], Event]
    field: str
    rule: str
    options: PublishOptions = field(default_factory=PublishOptions)


def _nested(levels: int) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    return value


def _payload(name: str, value: Any, path: str, rule: str) -> Refused:
    return Refused(name, lambda: Anything(value=value), path, rule)


def _option(name: str, rule: str, **options: Any) -> Refused:
    return Refused(name, lambda: Placed(order_id="1"), next(iter(options)), rule, PublishOptions(**options))  # type: ignore[typeddict-item]


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
        "too_deep", _nested(DEPTH + 1), "value" + "[0]" * 18 + "…" + ("[0]" * 40)[-40:], f"more than {DEPTH} levels"
    ),
    _payload("too_large", "x" * DEFAULT_LIMIT, "payload", f"the limit is {DEFAULT_LIMIT:,}"),
    _payload("huge_integer", 10**5000, "value", "digits"),
    _payload("not_json", object(), "payload", "cannot be written as JSON"),
    Refused(
        "naive_datetime_in_a_model",
        lambda: Shipped(basket=Basket(lines=[Line(article="a", price=Decimal(1), at=datetime(2024, 1, 1))])),  # noqa: DTZ001
        "basket.lines[0].at",
        "naive datetime 2024-01-01",
    ),
    Refused("mistyped", lambda: Placed.model_construct(order_id=7), "payload", "cannot be written as JSON"),  # type: ignore[arg-type]
    Refused("unregistered", Unregistered, "event", "not registered"),
    Refused("foreign", lambda: PlacedElsewhere(order_id="1"), "event", "foreign view"),
    Refused("not_an_event", lambda: {"order_id": "1"}, "event", "not an instance of an Event"),  # type: ignore[arg-type,return-value]
    Refused("a_class", lambda: Placed, "event", "not an instance of an Event"),  # type: ignore[arg-type,return-value]
    Refused("empty_key_field", lambda: Placed(order_id=""), "key", "empty"),
    _option("empty_key", "empty", key=""),
    _option("long_key", f"at most {names.KEY_BYTES}", key="é" * 257),
    _option("nul_in_the_key", r"\u0000", key="a\x00"),
    _option("key_of_another_type", "UUID, not str", key=UUID(int=1)),
    _option("empty_idempotency_key", "empty", idempotency_key=""),
    _option("long_idempotency_key", f"at most {names.KEY_BYTES}", idempotency_key="k" * 513),
    _option("surrogate_in_the_idempotency_key", "surrogate", idempotency_key="\ud800"),
    _option("empty_workspace", "empty", workspace_id=""),
    _option("long_workspace", f"at most {names.WORKSPACE_BYTES}", workspace_id="w" * 256),
    _option("long_aggregate_kind", f"at most {names.TYPE_BYTES}", aggregate_kind="a" * 201),
    _option("bad_target", "'Bad target' is not", target="Bad target"),
    _option("unknown_content_class", "not one of public", content_class="secret"),
    _option("bad_channel_class", "'No' is not a lower-case word", channel_class="No"),
    _option("long_channel_class", "at most", channel_class="c" * 60),
    _option("large_entity_version", "64 bits", entity_version=2**63),
    _option("fractional_entity_version", "float, not int", entity_version=1.5),
    _option("naive_occurred_at", "naive", occurred_at=datetime(2024, 1, 1)),  # noqa: DTZ001
    _option("date_as_occurred_at", "date, not datetime", occurred_at=date(2024, 1, 1)),
    _option("occurred_at_out_of_range", "year", occurred_at=datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
)
