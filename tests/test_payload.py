"""The payload: whatever is not refused comes back unchanged from a real jsonb column, and a refusal says where."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer

from outrider import Event, PublishRefused
from outrider.payload import DEFAULT_LIMIT, DEPTH, encode
from outrider.testing.cases import Anything

EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001
LOCAL_MEAN_TIME = datetime(1800, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))

any_text = st.text(alphabet=st.characters())
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.text(alphabet="\x00\\u0\ud800\"'a"),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(any_text, inner, max_size=5),
    max_leaves=30,
)


class Holder(BaseModel):
    name: str = "a"
    value: Any = None
    hidden: Any = Field(default=None, exclude=True)


@dataclasses.dataclass
class Plain:
    value: Any


class Holding(Event, type="payload.holding"):
    holders: list[Holder]


def refusal(value: Any, limit: int = DEFAULT_LIMIT) -> PublishRefused:
    event = value if isinstance(value, Event) else Anything(value=value)
    with pytest.raises(PublishRefused) as refused:
        encode(event, "a.b", limit)
    assert refused.value.event_type == "a.b"
    assert str(refused.value) == f"a.b was not published: {refused.value.field}: {refused.value.rule}"
    return refused.value


def encoded(event: Event) -> str | PublishRefused:
    try:
        return encode(event, "a.b")
    except PublishRefused as refused:
        return refused


@pytest.fixture
def jsonb(server: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("create temp table stored (payload jsonb not null)")
        yield conn


def stored(conn: psycopg.Connection[Any], text: str) -> str:
    conn.execute("truncate stored")
    conn.execute("insert into stored values (%s::text::jsonb)", [text])
    row = conn.execute("select payload::text from stored").fetchone()
    assert row is not None
    return str(row[0])


def same(found: Any, given: Any) -> bool:
    match given:
        case dict():
            return (
                isinstance(found, dict)
                and found.keys() == given.keys()
                and all(same(found[k], given[k]) for k in given)
            )
        case list():
            return isinstance(found, list) and len(found) == len(given) and all(map(same, found, given))
        case float():
            # jsonb prints 1e23 as a whole number, which Python reads as an int.
            return isinstance(found, float | int) and not isinstance(found, bool) and float(found) == given
        case _:
            return type(found) is type(given) and found == given


@pytest.mark.verify
@EXAMPLES
@given(value=any_json)
def test_any_json_comes_back_from_jsonb_or_is_refused(jsonb: psycopg.Connection[Any], value: Any) -> None:
    text = encoded(Anything(value=value))
    assert isinstance(text, str) == storable(value)
    if isinstance(text, str):
        assert same(Anything.model_validate_json(stored(jsonb, text)).value, value)
    else:
        assert text.field.startswith("value")


def storable(value: Any) -> bool:
    match value:
        case float():
            return value == value and abs(value) != float("inf")
        case str():
            return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
        case dict():
            return all(storable(key) and storable(item) for key, item in value.items())
        case list():
            return all(storable(item) for item in value)
        case _:
            return True


class Typed(Event, type="payload.typed"):
    number: float
    amount: Decimal
    at: datetime
    by_number: dict[int, str]
    span: timedelta


@EXAMPLES
@given(
    number=st.floats(allow_nan=False, allow_infinity=False),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    at=st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()),  # noqa: DTZ001
    by_number=st.dictionaries(st.integers(-(10**9), 10**9), st.text(alphabet="ab"), max_size=4),
    span=st.timedeltas(),
)
def test_typed_fields_come_back_equal(jsonb: psycopg.Connection[Any], **fields: Any) -> None:
    event = Typed(**fields)
    text = encoded(event)
    if isinstance(text, PublishRefused):
        assert text.field == "at"
        assert fields["at"].utcoffset().total_seconds() % 60
        return
    found = Typed.model_validate_json(stored(jsonb, text))
    instant = {"at": event.at.astimezone(UTC)}  # two equal times are not == when one of them lies in a zone's gap
    assert found.model_dump() | {"at": found.at.astimezone(UTC)} == event.model_dump() | instant
    assert str(found.amount) == str(event.amount)


@pytest.mark.verify
@EXAMPLES
@given(keys=st.lists(st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("0123"), max_size=6))
def test_no_key_of_a_mapping_is_lost(jsonb: psycopg.Connection[Any], keys: list[Any]) -> None:
    given = dict.fromkeys(keys, 1)
    text = encoded(Anything(value=given))
    if isinstance(text, PublishRefused):
        assert "the same text in JSON" in text.rule
        assert len({str(key).removesuffix(".0").lower() for key in given}) < len(given)
    else:
        assert len(json.loads(stored(jsonb, text))["value"]) == len(given)


# Where the refusal points


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "value"),
        ({"a": {"b": [0, {"c": float("nan")}]}}, "value.a.b[1].c"),
        ({"a": ({"b": float("nan")},)}, "value.a[0].b"),
        ([[float("nan")]], "value[0][0]"),
        ({1: float("nan")}, "value[1]"),
        (Holder(value=[Holder(value=float("nan"))]), "value.value[0].value"),
        (Plain(value={"x": float("nan")}), "value.value.x"),
        (deque([1, float("nan")]), "value[1]"),
        (OrderedDict(a=float("nan")), "value.a"),
        (MappingProxyType({"a": float("nan")}), "value.a"),
        ({float("inf")}, "value.inf"),
    ],
)
def test_the_path_to_a_nan(value: Any, path: str) -> None:
    assert refusal(value).field == path
    assert "which JSON cannot express; use null or a string" in refusal(value).rule


def test_the_path_through_the_event_itself() -> None:
    assert refusal(Holding(holders=[Holder(), Holder(value={"a": "\x00"})])).field == "holders[1].value.a"


def test_a_long_path_is_cut_in_the_middle() -> None:
    field = refusal({"k" * 200: {"end": NAIVE}}).field
    assert len(field) == 101
    assert field.startswith("value.kkk")
    assert field.endswith("kkk.end")
    assert "…" in field


def test_an_extra_field_is_checked_too() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert refusal(Open.model_validate({"a": float("nan")})).field == "value.a"


def test_a_field_that_is_not_written_is_not_checked() -> None:
    assert json.loads(encode(Anything(value=Holder(hidden=float("nan"))), "a.b")) == {
        "value": {"name": "a", "value": None}
    }


# What is refused


class Odd(Enum):
    NAN = float("nan")
    NUL = "\x00"
    NAIVE = NAIVE
    TEXT = "fine"


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (Odd.NAN, "is nan"),
        (Odd.NUL, r"contains \u0000"),
        (Odd.NAIVE, "naive datetime 2024-01-01T00:00:00"),
        (NAIVE, "give it a time zone"),
        (LOCAL_MEAN_TIME, "a UTC offset with seconds would be cut"),
        (datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=1))), "a UTC offset with seconds would be cut"),
        ({1: "a", "1": "b"}, "two keys that are the same text in JSON"),
        ({True: 1, "true": 2}, "two keys that are the same text in JSON"),
        ({float("nan"): 1}, "has a key that is nan"),
        ({NAIVE: 1}, "has a key that is the naive datetime"),
        ({Odd.NUL: 1}, r"has a key that contains \u0000"),
        ({(1, "\x00"): 1}, r"has a key that contains \u0000"),
        ((n for n in [1]), "is an iterator, which can be read only once"),
        (10**3915, "more than 3,900 digits"),
        (-(10**3915), "more than 3,900 digits"),
    ],
)
def test_refused(value: Any, rule: str) -> None:
    assert refusal(value).field == "value"
    assert rule in refusal(value).rule


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (object(), "cannot be written as JSON: Unable to serialize unknown type: <class 'object'>"),
        (b"\xff", "cannot be written as JSON: Error serializing to JSON: invalid utf-8"),
        (b"\x00", "contains \\u0000, which Postgres cannot store"),
    ],
)
def test_what_only_the_writing_shows_is_refused_as_the_payload(value: Any, rule: str) -> None:
    assert refusal(value).field == "payload"
    assert refusal(value).rule.startswith(rule)


def test_a_serializer_cannot_smuggle_in_a_nul() -> None:
    class Sly(Event, type="payload.sly"):
        value: str

        @field_serializer("value")
        def write(self, value: str) -> str:
            return f"{value}\x00"

        @computed_field  # type: ignore[prop-decorator]
        @property
        def doubled(self) -> str:
            return self.value * 2

    assert refusal(Sly(value="\\")).rule == "contains \\u0000, which Postgres cannot store"


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", "\\\\\\u0000", '"\\u0000', "\\ud800", "\\"])
def test_text_that_only_looks_like_an_escape(jsonb: psycopg.Connection[Any], value: str) -> None:
    assert json.loads(stored(jsonb, encode(Anything(value=value), "a.b"))) == {"value": value}


def test_a_mistyped_event_names_the_field() -> None:
    mistyped = Holding.model_construct(holders=7)  # type: ignore[arg-type]
    assert "Holder" in refusal(mistyped).rule or "list" in refusal(mistyped).rule


# Borders


def nested(levels: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}, lambda v: Holder(value=v), lambda v: Plain(v)])
def test_the_deepest_payload(jsonb: psycopg.Connection[Any], wrap: Any) -> None:
    """The levels are counted below the event."""
    text = encode(Anything(value=nested(DEPTH, wrap)), "a.b")
    assert stored(jsonb, text)
    assert refusal(nested(DEPTH + 1, wrap)).rule == f"is nested more than {DEPTH} levels deep"


def test_a_value_that_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refusal(loop).rule == f"is nested more than {DEPTH} levels deep"


def test_the_limit_counts_bytes_and_names_the_setting() -> None:
    room = 2000 - len('{"value":""}')
    assert len(encode(Anything(value="é" * (room // 2)), "a.b", 2000).encode()) == 2000
    refused = refusal("é" * (room // 2) + "a", 2000)
    assert refused.field == "payload"
    assert refused.rule.startswith("has 2,001 bytes, the limit is 2,000;")
    assert "payload_limit= (OUTRIDER_PAYLOAD_LIMIT)" in refused.rule


def test_ten_megabytes_name_the_limit_and_the_setting() -> None:
    assert "the limit is 262,144; keep large content elsewhere" in refusal("x" * 10_000_000).rule


@pytest.mark.parametrize(
    "value", [Odd.TEXT, Number.ONE, {"a", "b"}, b"text", 10**3900, datetime(2024, 1, 1, tzinfo=UTC)]
)
def test_taken(jsonb: psycopg.Connection[Any], value: Any) -> None:
    assert stored(jsonb, encode(Anything(value=value), "a.b"))


def test_an_iterable_field_is_refused_because_pydantic_reads_it_once() -> None:
    class Lazy(Event, type="payload.lazy"):
        values: Iterable[int]

    assert refusal(Lazy(values=[1, 2])).field == "values"
