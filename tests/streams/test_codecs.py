"""Codecs: what is written comes back, in Node's bytes where that is promised; what is no event is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.streams.node import node

from outrider import Envelope
from outrider.errors import Undecodable
from outrider.names import EARLIEST, LATEST
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.replica import ReplicaChange, ReplicaCodec, read_change
from outrider.streams.stream import Codec

EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
ID = UUID("0190f5a3-7c2b-7abc-8def-0123456789ab")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
AT = datetime(2026, 1, 31, 12, 0, 0, 123999, tzinfo=UTC)
PLAIN = Envelope(
    id=ID,
    event_type="orders.placed",
    event_version=2,
    payload_json='{"order_id": 17}',
    source="shop",
    idempotency_key=str(ID),
    occurred_at=AT,
)
FULL = replace(
    PLAIN,
    target="billing",
    content_class="restricted",
    workspace_id="w 1",
    aggregate_kind="order",
    key="käse/17",
    entity_version=2**63 - 1,
    idempotency_key="once",
    trace_context=TRACE,
)
WHOLE: list[Codec] = [EnvelopeCodec(), CloudEventsCodec()]
ALL: list[Codec] = [*WHOLE, ReplicaCodec()]
# Texts that mean more digits than any parsed number holds, and texts that look like the structure around them.
PAYLOADS = [
    "null",
    "[]",
    "{}",
    '""',
    "0",
    "-0",
    "9007199254740993",
    "123456789012345678901234567890",
    "1e400",
    "-1E+400",
    "1.10",
    "0.1000000000000000055511151231257827",
    "3.141592653589793238462643383279502884197169399375105820974944592307816406286",
    '{"a": 1, "a": 2}',
    '{"payload":{"payload":1},"data":[{"data":2}],"v":1}',
    '{"x": "\\",\\"payload\\":1}"}',
    '[",\\"data\\":", "}", "\\u00e4", "\\ud83d\\ude00", "\\\\u0000"]',
    " \n{ } ",
    '{"n": ' + "9" * 3_899 + "}",
    "[" * 65 + "]" * 65,
]

storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=15)
awkward = (
    st.sampled_from(['"', "\\", ',"payload":1}', "\u2028", "😀", "__proto__", "null", "%2F", "/", "a b"]) | storable
)
payloads = st.sampled_from(PAYLOADS) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | awkward,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(awkward, inner, max_size=3),
    max_leaves=8,
).map(json.dumps)
times = st.datetimes(
    min_value=EARLIEST.replace(tzinfo=None),
    max_value=LATEST.replace(tzinfo=None),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11))]),
).filter(lambda at: EARLIEST <= at <= LATEST)
envelopes = st.builds(
    Envelope,
    id=st.uuids(),
    event_type=awkward,
    event_version=st.integers(1, 2**31 - 1),
    payload_json=payloads,
    source=awkward,
    target=st.none() | awkward,
    content_class=st.sampled_from(["public", "internal", "confidential", "restricted"]),
    workspace_id=st.none() | awkward,
    aggregate_kind=st.none() | awkward,
    key=st.none() | awkward,
    entity_version=st.none() | st.integers(-(2**63), 2**63 - 1),
    idempotency_key=awkward,
    trace_context=st.none()
    | st.dictionaries(st.sampled_from(["traceparent", "tracestate", "baggage"]), awkward, min_size=1),
    occurred_at=st.none() | times,
)


@EXAMPLES
@given(envelopes, st.booleans())
def test_an_event_comes_back_as_it_was(envelope: Envelope, by_id: bool) -> None:
    if by_id:
        envelope = replace(envelope, idempotency_key=str(envelope.id))
    for codec in WHOLE:
        data = codec.encode(envelope, "")
        assert codec.decode(data) == replace(envelope, payload_json=envelope.payload_json.strip())
        assert codec.id_of(data) == envelope.id
        # Another writer puts the members in another order, with other spaces and escapes.
        empty = replace(envelope, payload_json="{}")
        again = json.dumps(dict(reversed(json.loads(codec.encode(empty, "")).items())), indent=1).encode()
        assert codec.decode(again) == empty
        assert codec.id_of(again) == envelope.id


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("codec", WHOLE)
def test_a_payload_keeps_its_text_to_the_last_digit(codec: Codec, payload: str) -> None:
    member = "payload" if isinstance(codec, EnvelopeCodec) else "data"
    data = codec.encode(replace(FULL, payload_json=payload), "")
    assert codec.decode(data).payload_json == payload.strip()
    # Also where it does not stand last.
    head, tail = data.decode().split(f',"{member}":', 1)
    moved = f'{{"{member}" : {tail[:-1]} , {head[1:]}}}'
    assert codec.decode(moved.encode()).payload_json == payload.strip()
    assert codec.id_of(moved.encode()) == ID


def test_the_envelope_codec_names_what_travels() -> None:
    assert json.loads(EnvelopeCodec().encode(FULL, "")) == {
        "v": 1,
        "id": str(ID),
        "event_type": "orders.placed",
        "event_version": 2,
        "source": "shop",
        "content_class": "restricted",
        "occurred_at": "2026-01-31T12:00:00.123999Z",
        "target": "billing",
        "workspace_id": "w 1",
        "aggregate_kind": "order",
        "key": "käse/17",
        "entity_version": 2**63 - 1,
        "idempotency_key": "once",
        "trace_context": TRACE,
        "payload": {"order_id": 17},
    }
    shortest = json.loads(EnvelopeCodec().encode(PLAIN, ""))
    wanted = ["v", "id", "event_type", "event_version", "source", "content_class", "occurred_at", "payload"]
    assert list(shortest) == wanted


def test_what_belongs_to_one_log_does_not_travel() -> None:
    here = replace(FULL, channel="outbox_gen_7", generation=7, origin="inbox", seq=99)
    for codec in WHOLE:
        assert codec.decode(codec.encode(here, "")) == FULL


def test_a_cloud_event_has_the_names_and_kinds_of_the_standard() -> None:
    event = json.loads(CloudEventsCodec().encode(FULL, ""))
    assert event == {
        "specversion": "1.0",
        "id": str(ID),
        "source": "/shop",
        "type": "orders.placed",
        "datacontenttype": "application/json",
        "time": "2026-01-31T12:00:00.123999Z",
        "subject": "käse/17",
        "data": {"order_id": 17},
        "eventversion": 2,
        "contentclass": "restricted",
        "target": "billing",
        "workspaceid": "w 1",
        "aggregatekind": "order",
        "entityversion": str(2**63 - 1),
        "idempotencykey": "once",
        **TRACE,
    }
    for name, value in event.items():
        assert re.fullmatch("[a-z0-9]{1,20}", name)
        assert name == "data" or isinstance(value, str) or -(2**31) <= value < 2**31


def cloud_event(**members: Any) -> bytes:
    return json.dumps(
        {"specversion": "1.0", "id": "A234-1234", "source": "/mycontext", "type": "com.Example.X"} | members
    ).encode()


def test_a_cloud_event_of_another_producer_is_taken_in() -> None:
    """The example of the specification, with attributes that mean nothing here."""
    data = cloud_event(
        source="https://github.com/cloudevents/spec/pull",
        type="com.github.pull_request.opened",
        subject="123",
        time="2018-04-05T17:31:00+02:00",
        comexampleextension1="value",
        comexampleothervalue=5,
        datacontenttype="text/xml",
        data='<much wow="xml"/>',
    )
    taken = CloudEventsCodec().decode(data)
    assert taken == Envelope(
        id=taken.id,
        event_type="com.github.pull_request.opened",
        event_version=1,
        payload_json='"<much wow=\\"xml\\"/>"',
        source="https_github_com_cloudevents_spec_pull",
        key="123",
        idempotency_key=str(taken.id),
        occurred_at=datetime(2018, 4, 5, 15, 31, tzinfo=UTC),
    )
    assert taken.id == UUID("62c75f1f-bf40-5544-b0b5-393b27ddf2e0")
    assert CloudEventsCodec().id_of(data) == taken.id
    least = CloudEventsCodec().decode(cloud_event())
    assert (least.payload_json, least.occurred_at, least.key, least.content_class) == ("{}", None, None, "internal")
    assert CloudEventsCodec().decode(cloud_event(data=None)).payload_json == "null"


def test_the_id_of_a_foreign_cloud_event_is_of_its_source_and_its_id() -> None:
    codec = CloudEventsCodec()
    pairs = [
        ("/a", "1"),
        ("/a", "2"),
        ("/b", "1"),
        ('/a" "b', "1"),
        ("/a", 'b" "1'),
        ("/a", str(ID).upper()),
        ("/a 1", "1"),
    ]
    pairs += [("/a", f"{{{ID}}}"), ("/a", ID.hex), ("/a", "ä" * 5_000)]
    ids = [codec.decode(cloud_event(source=source, id=name)).id for source, name in pairs]
    assert len(set(ids)) == len(pairs)
    assert ids == [codec.id_of(cloud_event(source=source, id=name)) for source, name in pairs]
    assert codec.decode(cloud_event(id=str(ID))).id == ID == codec.id_of(cloud_event(id=str(ID)))


@pytest.mark.parametrize(
    ("source", "context"),
    [
        ("/shop", "shop"),
        ("shop", "shop"),
        ("/Shop.API", "Shop.API"),
        ("/a%2Fb", "a/b"),
        ("/a/b", "a_b"),
        ("urn:uuid:6e8bc430", "urn_uuid_6e8bc430"),
        ("//example.com", "example_com"),
        ("1-555-123-4567", "source_1_555_123_4567"),
        ("/", "source_8a5edab28263"),
        ("/käse", "k_se"),
    ],
)
def test_the_source_of_a_cloud_event_becomes_a_context(source: str, context: str) -> None:
    assert CloudEventsCodec().decode(cloud_event(source=source)).source == context


@pytest.mark.verify
@EXAMPLES
@given(awkward | st.text(max_size=200).filter(lambda text: text and "\x00" not in text))
def test_every_source_becomes_something_that_a_log_takes(source: str) -> None:
    codec = CloudEventsCodec()
    try:
        taken = codec.decode(cloud_event(source=source))
    except Undecodable:
        assert re.search("[\ud800-\udfff]", source)
        return
    assert 1 <= len(taken.source.encode()) <= 63
    assert codec.decode(codec.encode(taken, "")) == taken


def test_long_sources_that_begin_alike_stay_apart() -> None:
    long = ["https://e.com/" + "a" * 99 + end for end in "bc"]
    contexts = [CloudEventsCodec().decode(cloud_event(source=source)).source for source in long]
    assert [len(context) for context in contexts] == [63, 63]
    assert contexts[0] != contexts[1]


OWN: dict[str, Any] = json.loads(EnvelopeCodec().encode(FULL, ""))
CLOUD: dict[str, Any] = json.loads(CloudEventsCodec().encode(FULL, ""))
LIMITS = {"event_type": 200, "source": 63, "target": 63, "workspace_id": 255, "aggregate_kind": 200, "key": 512}
LIMITS["idempotency_key"] = 512
CLOUD_LIMITS = {
    "type": 200,
    "target": 63,
    "workspaceid": 255,
    "aggregatekind": 200,
    "subject": 512,
    "idempotencykey": 512,
}


def refusal(codec: Codec, data: bytes) -> str:
    with pytest.raises(Undecodable) as refused:
        codec.decode(data)
    assert str(refused.value).startswith("the entry is not an event: ")
    assert len(str(refused.value)) < 400
    return str(refused.value).removeprefix("the entry is not an event: ")


def changed(codec: Codec, **members: Any) -> bytes:
    return json.dumps((OWN if isinstance(codec, EnvelopeCodec) else CLOUD) | members).encode()


@pytest.mark.parametrize("codec", WHOLE)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not UTF-8 text: invalid start byte at byte 0"),
        (b'{"a":"\xed\xa0\x80"}', "it is not UTF-8"),
        (b"\xef\xbb\xbf{}", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b'{"v":1', "it is not JSON"),
        (b'{"v":1}}', "it is not JSON"),
        (b'{,"payload":1,"data":1}', "it is not JSON"),
        (b'{,"payload":1}', "it is not JSON"),
        (b'{,"data":1}', "it is not JSON"),
        (b'{"v":1,,"payload":1}', "it is not JSON"),
        (b'{"v":1,"payload":1,}', "it is not JSON"),
        (b'{"v" 1}', "it is not JSON"),
        (b'{"v":1 "a":2}', "it is not JSON"),
        (b"{'v':1}", "it is not JSON"),
        (b"null", "it is not a JSON object"),
        (b"[{}]", "it is not a JSON object"),
        (b'"{}"', "it is not a JSON object"),
        (b'{"v":1,"v":1}', "it has 'v' twice"),
        (b'{"a":1,"\\u0061":1,"payload":1,"data":1}', "it has 'a' twice"),
        (b'{"payload":1,"a":1,"payload":1}', "it has 'payload' twice"),
        (b'{"a":NaN}', "it has NaN"),
        (b'{"a":[-Infinity]}', "it has -Infinity"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "it is nested more than 64 levels deep"),
        (b'{"a":' * 100_000, "it is nested more than 64 levels deep"),
    ],
)
def test_what_is_no_object_is_refused(codec: Codec, data: bytes, why: str) -> None:
    assert refusal(codec, data).startswith(why)


def test_what_another_codec_wrote_is_refused() -> None:
    own, cloud, replica = (codec.encode(replace(FULL, entity_version=1), "1-1") for codec in ALL)
    assert refusal(EnvelopeCodec(), cloud).startswith("v is None, not 1")
    assert refusal(EnvelopeCodec(), replica).startswith("v is None, not 1")
    assert refusal(EnvelopeCodec(), changed(EnvelopeCodec(), v=2)).startswith("v is 2, not 1: another codec or a newer")
    assert refusal(EnvelopeCodec(), changed(EnvelopeCodec(), v=True)).startswith("v is True")
    assert refusal(CloudEventsCodec(), own).startswith("specversion is None, not '1.0'")
    assert refusal(CloudEventsCodec(), changed(CloudEventsCodec(), specversion="0.3")).startswith(
        "specversion is '0.3'"
    )
    for mine, codec in enumerate(ALL):
        assert [codec.id_of(data) for data in (own, cloud, replica)] == [ID if n == mine else None for n in range(3)]
        assert [codec.id_of(data) for data in (b"", b"\xff", b"[]", b"{}", b'{"v":1,"id":7}')] == [None] * 5
        with pytest.raises((Undecodable, TypeError)):
            codec.decode(own[:-1])


@pytest.mark.parametrize("name", ["id", "event_type", "event_version", "source", "content_class", "payload"])
def test_a_missing_field_is_named(name: str) -> None:
    left = {key: value for key, value in OWN.items() if key != name}
    assert refusal(EnvelopeCodec(), json.dumps(left).encode()) == f"{name} is missing"


@pytest.mark.parametrize(("codec", "limits"), [(WHOLE[0], LIMITS), (WHOLE[1], CLOUD_LIMITS)])
def test_texts_have_the_lengths_that_the_log_takes(codec: Codec, limits: dict[str, int]) -> None:
    for name, limit in limits.items():
        codec.decode(changed(codec, **{name: "x" * limit}))
        codec.decode(changed(codec, **{name: "ä" * (limit // 2)}))
        assert refusal(codec, changed(codec, **{name: "x" * (limit + 1)})) == (
            f"{name}: has {limit + 1} bytes, at most {limit} are allowed"
        )
        assert "bytes, at most" in refusal(codec, changed(codec, **{name: "ä" * (limit // 2 + 1)}))
        assert refusal(codec, changed(codec, **{name: ""})).startswith(f"{name}: is empty")
        assert refusal(codec, changed(codec, **{name: 7})) == f"{name}: 7 is int, not str"
        assert refusal(codec, changed(codec, **{name: ["x" * 999]})).endswith("is list, not str")
        assert "\\u0000 at position 1" in refusal(codec, changed(codec, **{name: "a\x00"}))
        assert "lone surrogate \\ud800" in refusal(codec, changed(codec, **{name: "\ud800"}))


OWN_WRONG: list[tuple[str, Any, str]] = [
    ("id", "x", "'x' is not a UUID"),
    ("id", ID.hex, "is not a UUID"),
    ("id", 7, "7 is int"),
    ("event_version", 0, "0 is not between 1 and 2147483647"),
    ("event_version", 2**31, "is not between"),
    ("event_version", 1.0, "is float, not an integer"),
    ("event_version", True, "is bool, not an integer"),
    ("event_version", "1", "is str, not an integer"),
    ("entity_version", 2**63, "is not between"),
    ("entity_version", -(2**63) - 1, "is not between"),
    ("entity_version", "1", "is str, not an integer"),
    ("content_class", "Secret", "'Secret' is not a lower-case word"),
    ("content_class", ["public"], "is list, not str"),
    ("content_class", {}, "is dict, not str"),
    ("trace_context", [], "is list, not an object"),
    ("trace_context", {"a": 1}, "1, which is int"),
    ("trace_context", {"a": "\x00"}, "\\u0000"),
    ("trace_context", {"\ud800": "a"}, "lone surrogate"),
    ("payload", {"a": ["\x00"]}, "contains \\u0000"),
    ("payload", {"a\x00": 1}, "has a key that contains \\u0000"),
    ("payload", [{"a": {"b": "\udfff"}}], "contains the lone surrogate \\udfff"),
    ("payload", json.loads("[" * 66 + "]" * 66), "is nested more than 64 levels deep"),
]
CLOUD_WRONG: list[tuple[str, Any, str]] = [
    ("id", "", "is not a text"),
    ("id", 7, "is not a text"),
    ("id", None, "is not a text"),
    ("id", "\ud800", "lone surrogate"),
    ("source", "", "is not a text"),
    ("source", {}, "is not a text"),
    ("source", "a\x00", "\\u0000"),
    ("type", None, "is missing"),
    ("eventversion", 0, "is not between"),
    ("eventversion", "1", "is str, not an integer"),
    ("entityversion", "1.5", "is not an integer of 64 bits"),
    ("entityversion", str(2**63), "is not an integer of 64 bits"),
    ("entityversion", "٣", "is not an integer of 64 bits"),
    ("entityversion", 2**63, "is not between"),
    ("contentclass", "Secret", "is not a lower-case word"),
    ("traceparent", 7, "is int, not str"),
    ("tracestate", "\x00", "\\u0000"),
    ("data_base64", "aGk=", "binary"),
    ("data", {"a": ["\x00"]}, "contains \\u0000"),
    ("data", json.loads("[" * 66 + "]" * 66), "is nested more than 64 levels deep"),
]
TIMES_WRONG = ["", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00:00Z", "2026-02-30T12:00:00Z"]
TIMES_WRONG += ["2026-01-31T24:00:00Z", "2026-01-31T23:59:60Z", "2026-01-31T12:00Z", "0001-01-01T23:59:59.999999Z"]
TIMES_WRONG += [
    "9999-12-31T00:00:00Z",
    "9999-12-31T23:59:59-23:00",
    "0001-01-01T00:00:00+23:00",
    "0000-01-01T00:00:00Z",
]
TIMES_WRONG += [
    "2026-01-31T12:00:00+25:00",
    "2026-01-31T12:00:00.Z",
    "٢026-01-31T12:00:00Z",
    "2026-W01-1T12:00:00Z",
    "x" * 999,
]


@pytest.mark.parametrize(
    ("codec", "name", "value", "why"),
    [(WHOLE[0], *wrong) for wrong in OWN_WRONG]
    + [(WHOLE[1], *wrong) for wrong in CLOUD_WRONG]
    + [(WHOLE[0], "occurred_at", at, "occurred_at: ") for at in [*TIMES_WRONG, 7]]
    + [(WHOLE[1], "time", at, "time: ") for at in [*TIMES_WRONG, 7]],
)
def test_a_wrong_field_is_named_with_its_rule(codec: Codec, name: str, value: object, why: str) -> None:
    said = refusal(codec, changed(codec, **{name: value}))
    assert said.startswith(name)
    assert why in said


@pytest.mark.parametrize("codec", WHOLE)
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31t12:00:00z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.1+05:45", datetime(2026, 1, 31, 6, 15, 0, 100_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00.123456999-00:00", datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("0001-01-02T00:00:00Z", EARLIEST),
        ("9999-12-30T23:59:59.999999Z", LATEST),
    ],
)
def test_times_of_other_writers(codec: Codec, text: str, at: datetime) -> None:
    name = "occurred_at" if isinstance(codec, EnvelopeCodec) else "time"
    taken = codec.decode(changed(codec, **{name: text})).occurred_at
    assert taken == at
    assert taken is not None
    assert taken.tzinfo is UTC


@pytest.fixture
def jsonb(server: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("codec", WHOLE)
@pytest.mark.parametrize(
    "number", ["1e3900", "-1E+5000", "1e200000", "1e-16384", "0." + "1" * 16_384, "9" * 4_301, "1e99999999999999999999"]
)
def test_a_number_that_the_log_cannot_hold_or_python_not_read_back_is_refused(codec: Codec, number: str) -> None:
    data = codec.encode(replace(PLAIN, payload_json=f'{{"n": [{number}]}}'), "")
    assert len(refusal(codec, data)) < 200


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,4})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,6})?", fullmatch=True)
numbers |= st.builds(
    "{}e{}".format, st.integers(1, 99), st.sampled_from([3_000, 3_899, 3_900, 5_000, 131_072, -16_383, -16_384])
)
digits = st.sampled_from([3_899, 3_901, 4_301, 16_382, 16_384, 20_000, 132_000])
extremes = digits.map(lambda n: "9" * n) | digits.map(lambda n: "0." + "1" * n) | digits.map(lambda n: "1." + "0" * n)
pieces = st.sampled_from(
    ["\\u0000", "\\ud800", "\\udc00", "\\ud83d\\ude00", "\\\\u0000", "\\u00e4", "a", "\\n", "\\/", "\x7f"]
)
hostile = numbers | extremes | st.lists(pieces, max_size=4).map(lambda parts: f'"{"".join(parts)}"')
hostile |= st.integers(60, 70).map(lambda n: "[" * n + "]" * n)
hostile |= st.builds("{{{}:{}}}".format, st.lists(pieces, max_size=3).map(lambda parts: f'"{"".join(parts)}"'), hostile)


@pytest.mark.verify
@EXAMPLES
@given(payload=hostile)
def test_what_is_decoded_the_log_takes_and_python_reads_back(jsonb: psycopg.Connection[Any], payload: str) -> None:
    data = EnvelopeCodec().encode(replace(PLAIN, payload_json=payload), "")
    try:
        taken = EnvelopeCodec().decode(data)
    except Undecodable:
        return
    row = jsonb.execute("select %s::text::jsonb::text, octet_length(%s)", [taken.payload_json, taken.source]).fetchone()
    assert row is not None
    json.loads(row[0])


@pytest.mark.verify
@EXAMPLES
@given(st.data())
def test_no_bytes_make_anything_but_an_event_or_a_refusal(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(WHOLE))
    entry = bytearray(codec.encode(data.draw(envelopes), ""))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(entry) - 1))
        entry[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"}", b"\\"])
        )
        if not entry:
            return
    try:
        taken = codec.decode(bytes(entry))
    except Undecodable:
        codec.id_of(bytes(entry))
        return
    assert codec.id_of(bytes(entry)) == taken.id
    assert codec.decode(codec.encode(taken, "")) == taken


def test_a_trace_context_that_is_none_does_not_keep_an_event_back() -> None:
    """A publisher in plain SQL may give any JSON."""
    for trace, left in ({"traceparent": "00", "n": 1}, {"traceparent": "00"}), ([1], {}), ("x", {}):
        odd = Envelope.of(vars(PLAIN) | {"trace_context": trace})
        assert EnvelopeCodec().decode(EnvelopeCodec().encode(odd, "")).trace_context == left
        assert CloudEventsCodec().decode(CloudEventsCodec().encode(odd, "")).trace_context == (left or None)


@pytest.mark.parametrize("codec", ALL)
def test_what_cannot_be_written_is_a_value_error(codec: Codec) -> None:
    with pytest.raises(ValueError, match="naive datetime"):
        codec.encode(replace(PLAIN, occurred_at=AT.replace(tzinfo=None)), "")
    if not isinstance(codec, ReplicaCodec):
        with pytest.raises(ValueError, match="surrogate"):
            codec.encode(replace(PLAIN, key="\ud800"), "")


BUILD = """
const answer = (e) => {
  const payload = JSON.parse(e.payload_json)
  const object = payload !== null && typeof payload === 'object' && !Array.isArray(payload)
  return JSON.stringify({
    event_id: e.id, topic: e.event_type, aggregate_kind: e.aggregate_kind, aggregate_id: e.key,
    entity_version: e.entity_version,
    payload: e.trace_context === null || !object ? payload : {...payload, _telemetry: e.trace_context},
    stream_id: e.position, committed_at: e.occurred_at === null ? null : new Date(e.occurred_at).toISOString(),
  })
}
"""


def asked(envelope: Envelope, position: str) -> dict[str, Any]:
    at = envelope.occurred_at
    return {
        **{name: value for name, value in vars(envelope).items() if not name.startswith("_")},
        "id": str(envelope.id),
        "occurred_at": None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds"),
        "position": position,
    }


telemetry = [
    "{}",
    '{"a": 1}',
    '{"_telemetry": 1, "a": 2.0}',
    '{"a": {"_telemetry": 1}, "1": 1}',
    '{"\\u005ftelemetry": {"x": [1]}, "b": null, "__proto__": 7}',
    '{"a": "\\"_telemetry\\":"}',
    "[]",
    '"_telemetry"',
    "null",
    "-0",
]


@pytest.mark.verify
def test_a_replica_entry_has_the_bytes_that_node_writes() -> None:
    with node(BUILD) as ask:

        def same(envelope: Envelope, position: str) -> None:
            assert ReplicaCodec().encode(envelope, position).decode() == ask([asked(envelope, position)])[0]

        for payload in [*telemetry, *PAYLOADS]:
            for trace in (None, {}, TRACE, {"b": "\u2028", "1": '"', "0": "\x01"}):
                same(replace(FULL, payload_json=payload, trace_context=trace, entity_version=2**53), "1700000000000-0")
        for at in (EARLIEST, LATEST, AT, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None):
            same(replace(PLAIN, occurred_at=at), "")

        @EXAMPLES
        @given(envelopes, awkward, st.sampled_from(telemetry) | payloads, st.none() | st.integers(-(2**53), 2**53))
        def any_one(envelope: Envelope, position: str, payload: str, version: int | None) -> None:
            same(replace(envelope, payload_json=payload, entity_version=version), position)

        any_one()


def test_a_replica_entry_is_one_compact_object() -> None:
    envelope = replace(FULL, entity_version=3, payload_json='{"total": 9.90}')
    assert ReplicaCodec().encode(envelope, "5-0").decode() == (
        f'{{"event_id":"{ID}","topic":"orders.placed","aggregate_kind":"order","aggregate_id":"käse/17",'
        f'"entity_version":3,"payload":{{"total":9.9,"_telemetry":{json.dumps(TRACE, separators=(",", ":"))}}},'
        '"stream_id":"5-0","committed_at":"2026-01-31T12:00:00.123Z"}'
    )


@pytest.mark.parametrize("version", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**60])
def test_a_version_that_javascript_would_change_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"entity_version {version} is not exact in JavaScript"):
        ReplicaCodec().encode(replace(PLAIN, entity_version=version), "")


def test_a_replica_entry_is_no_envelope() -> None:
    with pytest.raises(TypeError, match=r"leaves out fields .* app\.replica, or let the relay use the envelope codec"):
        ReplicaCodec().decode(ReplicaCodec().encode(PLAIN, "1-1"))


@pytest.mark.verify
@EXAMPLES
@given(envelopes, st.none() | st.integers(-(2**53), 2**53))
def test_a_change_is_what_the_replica_codec_wrote(envelope: Envelope, version: int | None) -> None:
    envelope = replace(envelope, entity_version=version, occurred_at=envelope.occurred_at or AT)
    assert envelope.occurred_at is not None
    data = ReplicaCodec().encode(envelope, "7-1")
    at = envelope.occurred_at.astimezone(UTC)
    assert ReplicaCodec().id_of(data) == ReplicaCodec().id_of(b" " + data) == envelope.id
    assert read_change(data, 2048) == ReplicaChange(
        event_id=envelope.id,
        topic=envelope.event_type,
        aggregate_kind=envelope.aggregate_kind,
        aggregate_id=envelope.key,
        entity_version=version,
        payload=json.loads(data)["payload"],
        stream_id="7-1",
        committed_at=at.replace(microsecond=at.microsecond // 1000 * 1000),
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("event_id", None, "event_id is missing"),
        ("event_id", "x", "event_id: 'x' is not a UUID"),
        ("topic", "", "topic: is empty"),
        ("aggregate_id", 7, "aggregate_id: 7 is int"),
        ("aggregate_kind", "x" * 201, "aggregate_kind: has 201 bytes"),
        ("entity_version", 1.5, "entity_version: 1.5 is float"),
        ("entity_version", "1", "entity_version: '1' is str"),
        ("payload", {"a": "\x00"}, "payload contains \\u0000"),
        ("stream_id", None, "stream_id: None is NoneType"),
        ("committed_at", None, "committed_at is missing"),
        ("committed_at", "now", "committed_at: 'now' is not a time"),
    ],
)
def test_a_broken_change_is_undecodable(name: str, value: object, why: str) -> None:
    change = json.loads(ReplicaCodec().encode(replace(FULL, entity_version=3), "1-1"))
    with pytest.raises(Undecodable, match=re.escape(why)):
        read_change(json.dumps(change | {name: value}).encode(), 2048)
    del change["payload"]
    with pytest.raises(Undecodable, match="payload is missing"):
        read_change(json.dumps(change).encode(), 2048)
    with pytest.raises(Undecodable, match="not JSON"):
        read_change(b"{", 2048)
