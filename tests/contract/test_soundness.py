"""Random producers and readers: when `fits` sees nothing wrong, every payload of the producer is decoded by the reader."""

from __future__ import annotations

import datetime
import enum
import json
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from tests.contract import making

from outrider import Envelope, Event
from outrider.contract import Contract, compare, fits, reading
from outrider.contract.change import promised
from outrider.payload import encode

NAMES = ["a", "b", "c"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Wider(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Kind(NamedTuple):
    """An annotation, and the values that a producer with it may have."""

    annotation: Any
    values: st.SearchStrategy[Any]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
WHOLE = st.integers(-(2**60), 2**60)
SCALARS = [
    Kind(int, WHOLE),
    Kind(Annotated[int, Field(ge=0)], st.integers(0, 99)),
    Kind(Annotated[int, Field(gt=0, le=5)], st.integers(1, 5)),
    Kind(Annotated[int, Field(gt=-1)], st.integers(0, 99)),
    Kind(Annotated[int, Field(multiple_of=6)], st.integers(-9, 9).map(lambda n: n * 6)),
    Kind(Annotated[int, Field(multiple_of=3)], st.integers(-9, 9).map(lambda n: n * 3)),
    Kind(float, st.floats(allow_nan=False, allow_infinity=False)),
    Kind(Annotated[float, Field(ge=0, lt=1)], st.floats(0, 1, exclude_max=True)),
    Kind(Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    Kind(Annotated[Decimal, Field(ge=0)], st.decimals(0, 10**6, places=2)),
    Kind(Annotated[Decimal, Field(max_digits=5, decimal_places=2)], st.decimals(-999, 999, places=2)),
    Kind(Annotated[Decimal, Field(max_digits=5, decimal_places=3)], st.decimals(-99, 99, places=3)),
    Kind(bool, st.booleans()),
    Kind(str, TEXT),
    Kind(Annotated[str, Field(min_length=1)], TEXT.filter(len)),
    Kind(Annotated[str, Field(max_length=3)], TEXT.map(lambda text: text[:3])),
    Kind(Annotated[str, Field(pattern="^a+$")], st.sampled_from(["a", "aa"])),
    Kind(bytes, st.binary(max_size=3).map(lambda raw: raw.hex().encode())),
    Kind(UUID, st.uuids()),
    Kind(datetime.datetime, st.datetimes(timezones=st.just(datetime.UTC))),
    Kind(datetime.date, st.dates()),
    Kind(datetime.timedelta, st.timedeltas(datetime.timedelta(0), datetime.timedelta(9))),
    Kind(None, st.none()),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(Wider, st.sampled_from(Wider)),
    Kind(Literal["red"], st.just("red")),
    Kind(Literal["red", "blue", 1], st.sampled_from(["red", "blue", 1])),
    Kind(Literal[1, 2], st.sampled_from([1, 2])),
    Kind(Any, st.one_of(st.none(), WHOLE, TEXT)),
]
READERS_ONLY = [dict[str, Any], dict[str, int], dict[str, str], list[Any], Any, Annotated[str, Field(max_length=2)]]


def containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        inner.map(lambda k: Kind(making.A_LIST[k.annotation], st.lists(k.values, max_size=3))),
        inner.map(
            lambda k: Kind(
                Annotated[making.A_LIST[k.annotation], Field(min_length=1, max_length=2)],
                st.lists(k.values, min_size=1, max_size=2),
            )
        ),
        st.tuples(inner, inner).map(
            lambda two: Kind(
                making.A_TUPLE[two[0].annotation, two[1].annotation], st.tuples(two[0].values, two[1].values)
            )
        ),
        inner.map(lambda k: Kind(making.A_TUPLE[k.annotation, ...], st.lists(k.values, max_size=3).map(tuple))),
        inner.map(lambda k: Kind(making.A_DICT[str, k.annotation], st.dictionaries(TEXT, k.values, max_size=2))),
        inner.map(
            lambda k: Kind(making.A_DICT[int, k.annotation], st.dictionaries(st.integers(0, 9), k.values, max_size=2))
        ),
        inner.map(lambda k: Kind(making.A_DICT[UUID, k.annotation], st.dictionaries(st.uuids(), k.values, max_size=2))),
        inner.map(lambda k: Kind(Optional[k.annotation], st.none() | k.values)),  # noqa: UP045
        st.tuples(inner, inner).map(
            lambda two: Kind(Union[two[0].annotation, two[1].annotation], two[0].values | two[1].values)  # noqa: UP007
        ),
        fields(inner).map(lambda made: nested(made)),
    )


def fields(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[dict[str, tuple[Kind, bool]]]:
    """By name: the kind, and whether it has a default."""
    return st.dictionaries(st.sampled_from(NAMES), st.tuples(inner, st.booleans()), min_size=1)


def nested(made: dict[str, tuple[Kind, bool]]) -> Kind:
    model = making.model(**definitions(made))
    return Kind(model, instances(model, made))


def instances(model: type[BaseModel], made: dict[str, tuple[Kind, bool]]) -> st.SearchStrategy[Any]:
    values = {name: kind.values for name, (kind, _) in made.items()}
    return st.fixed_dictionaries(values).map(lambda given: model.model_construct(**given))


def definitions(made: dict[str, tuple[Kind, bool]]) -> dict[str, Any]:
    return {
        name: (kind.annotation, Field(default=None) if optional else ...) for name, (kind, optional) in made.items()
    }


KINDS = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=4)
MODELS = fields(KINDS)


@st.composite
def readers(draw: st.DrawFn, producer: dict[str, tuple[Kind, bool]]) -> dict[str, Any]:
    """Close to the producer, so that it often fits: fields left out, widened, narrowed, renamed, or quite different."""
    found: dict[str, Any] = {}
    for name, (kind, _) in producer.items():
        match draw(st.integers(0, 6)):
            case 0:
                continue
            case 1:
                annotation = draw(KINDS).annotation
            case 2:
                annotation = draw(st.sampled_from(READERS_ONLY))
            case 3:
                annotation = Optional[kind.annotation]  # noqa: UP045
            case 4:
                annotation = Union[draw(KINDS).annotation, kind.annotation]  # noqa: UP007
            case _:
                annotation = kind.annotation
        found[name] = (annotation, ... if draw(st.booleans()) else None)
    if draw(st.booleans()):
        found[draw(st.sampled_from([*NAMES, "d"]))] = (draw(KINDS).annotation, ... if draw(st.booleans()) else None)
    return found


def declare(name: str, definition: dict[str, Any], **options: Any) -> type[Event]:
    return making.event(name, {"type": "contract.sound", **options}, definition)


def envelope(text: str) -> Envelope:
    return Envelope(
        id=UUID(int=1), event_type="contract.sound", event_version=1, payload_json=text, source="a", idempotency_key="1"
    )


def without(payload: dict[str, Any], made: dict[str, tuple[Kind, bool]], dropped: set[str]) -> str:
    """As an event from before its optional fields were added."""
    return json.dumps({key: value for key, value in payload.items() if key not in dropped or not made[key][1]})


@pytest.mark.verify
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), made=MODELS)
def test_what_fits_is_decoded(data: st.DataObject, made: dict[str, tuple[Kind, bool]]) -> None:
    producer = declare("Producer", definitions(made))
    view = declare("View", data.draw(readers(made)), foreign=True)
    if fits(reading(view), Contract.of(producer, "a")):
        event("does not fit")
        return
    event("fits")
    published = data.draw(instances(producer, made))
    text = encode(published, "contract.sound")
    envelope(text).decode(view)
    envelope(without(json.loads(text), made, data.draw(st.sets(st.sampled_from(NAMES))))).decode(view)


@pytest.mark.verify
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), made=MODELS)
def test_every_event_is_read_by_its_own_shape(data: st.DataObject, made: dict[str, tuple[Kind, bool]]) -> None:
    """So a producer's definition can be copied as a view; and a snapshot that is read back is the same contract."""
    required = {name: (kind.annotation, ...) for name, (kind, _) in made.items()}
    producer = declare("Producer", required)
    contract = Contract.of(producer, "a")
    assert fits(reading(declare("View", required, foreign=True)), contract) == []
    again = Contract.read(contract.text)
    assert compare(again, contract) == []
    assert again.text == contract.text


@pytest.mark.verify
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), made=MODELS)
def test_what_breaks_nobody_breaks_nobody(data: st.DataObject, made: dict[str, tuple[Kind, bool]]) -> None:
    """Whoever reads the old shape, with defaults for all fields, reads what a compatible change publishes."""
    old = Contract.of(declare("Producer", definitions(made)), "a")
    changed = dict(made)
    for name in data.draw(st.sets(st.sampled_from(NAMES))):
        changed[name] = (data.draw(KINDS), data.draw(st.booleans()))
    producer = declare("Producer", definitions(changed))
    if any(change.breaks for change in compare(old, Contract.of(producer, "a"))):
        event("breaks")
        return
    event("breaks nobody")
    reader = declare("View", {name: (kind.annotation, None) for name, (kind, _) in made.items()}, foreign=True)
    text = encode(data.draw(instances(producer, changed)), "contract.sound")
    envelope(text).decode(reader)


@pytest.mark.verify
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), made=MODELS)
def test_what_a_refreshed_snapshot_requires_is_in_every_event(
    data: st.DataObject, made: dict[str, tuple[Kind, bool]]
) -> None:
    """In those from before the change as in those from after it."""
    before = declare("Producer", definitions(made))
    changed = {name: (kind, data.draw(st.booleans())) for name, (kind, _) in made.items()}
    changed |= {"d": (data.draw(KINDS), True)}
    after = declare("Producer", definitions(changed))
    old, new = Contract.of(before, "a"), Contract.of(after, "a")
    if any(change.breaks for change in compare(old, new)):
        event("breaks")
        return
    event("breaks nobody")
    kept = promised(old, new)
    assert not any(change.breaks for change in compare(old, kept))
    required = {name for name, field in kept.object.fields.items() if field.required}
    assert required == {name for name, (_, optional) in made.items() if not optional}
    for producer, shape in ((before, made), (after, changed)):
        assert required <= json.loads(encode(data.draw(instances(producer, shape)), "contract.sound")).keys()


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_values_here_are_those_of_their_annotations(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(SCALARS))
    TypeAdapter(kind.annotation).validate_python(data.draw(kind.values))
