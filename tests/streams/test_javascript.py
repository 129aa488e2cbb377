"""JSON as JavaScript writes it: every text goes through a real Node as well, and the characters are the same."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.streams.node import node

from outrider.streams.javascript import dumps, number, stringify

EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
AGAIN = "const answer = (text) => JSON.stringify(JSON.parse(text))"

NUMBERS = """0 -0 0.0 -0.0 -0e5 1 -1 10 1.0 -1.0 1.50 100e-2 1E5 1e+5 12e-1 0.1 0.30000000000000004 5e-324 -5e-324
    1e-5 1e-6 1e-7 0.000001 0.0000001 0.00001 -0.00001 0.000012345 0.0000012345 0.00000012345 123e-20 1e20 1e21 1e22
    123456789012345680000 1234567890123456800000 999999999999999900000 999999999999999999999 100000000000000000000
    9007199254740991 9007199254740992 9007199254740993 -9007199254740993 1152921504606846976 9223372036854775807
    999999999999999 1000000000000000 123456789012345678901234567890 1.7976931348623157e308 1.7976931348623159e308
    1e308 1e309 1e400 -1e400 1e-400 -1e-400 2.2250738585072014e-308 2.225073858507201e-308 4.35 4.349999999999999
    123456.123456789 999999.999999999 1234567.123456789 52.5200066 13.4049540 0.12345678901234 0.123456789012345
    -123456.5 -0.5 1.10 33.333333333333336 8.41 8.5e0 1.23456789e25 1.2345e-7 0.10 100 1e2 100.5"""
STRINGS = [
    "",
    " ",
    "a",
    '"\\/',
    "\b\f\n\r\t",
    "".join(map(chr, range(0x20))),
    "\x7f\x80\x9f\xa0\xad",
    "\u2028\u2029\ufeff\ufffe\uffff",
    "käse",
    "𝄞😀",
    "\ud800",
    "\udfff",
    "a\udc00b",
    "\udc00\ud800",
    "\ud800\ud800\udc00",
    "__proto__",
    "1.0",
    ": 1.0, 2",
    "٣",
]
KEYS = [
    "b",
    "a",
    "10",
    "9",
    "1",
    "0",
    "01",
    "-1",
    "1.0",
    "1e3",
    "٣",
    "",
    " 1",
    "4294967294",
    "4294967295",
    "4294967296",
]
KEYS += [
    "9007199254740991",
    "99999999999",
    "__proto__",
    "constructor",
    "toString",
    "length",
    "\ud800",
    "käse",
    '"',
    "2",
]


def awkward() -> list[str]:
    numbers = NUMBERS.split()
    texts = [*numbers, *(f"[{n}]" for n in numbers), *(f'{{"a" : {n} , "b":[ {n},{n} ]}}' for n in numbers)]
    texts += [json.dumps(s) for s in STRINGS] + [json.dumps(s, ensure_ascii=False) for s in STRINGS]
    texts += [json.dumps({s: [s, {s: s}]}) for s in STRINGS] + [
        '"\\/\\u002F\\u00e4\\uD83D\\uDE00\\ud83d"',
        '"\\uD83D😀"',
    ]
    texts += [json.dumps({key: n for n, key in enumerate(order)}) for order in (KEYS, KEYS[::-1], sorted(KEYS))]
    texts += [json.dumps([{key: key} for key in KEYS]), json.dumps({"x": {"2": {"1": 1}, "1": [{"b": 1, "0": 2}]}})]
    texts += [
        '{"a":1,"b":2,"a":3}',
        '{"2":1,"b":2,"1":0,"2":3,"b":4}',
        '{"\\u0031":1,"a":2,"1":3}',
        '{"a":1,"\\u0061":2}',
        '{"a":1,"\\u0030":2}',
    ]
    texts += ['{"__proto__":{"x":1},"a":1}', '{"a":{"__proto__":null}}', '{"__proto__":1,"__proto__":2,"0":3}']
    texts += ["null", "true", "false", "[]", "{}", "[[]]", "[{}]", '{"":{}}', " \t\r\n{ } \n", "[ 1 ,2, null,\ttrue ]"]
    texts += ["[" * n + "]" * n for n in (64, 190, 199, 200, 201, 202, 250)]
    return texts


def test_awkward_values_as_node_writes_them() -> None:
    texts = awkward()
    with node(AGAIN) as ask:
        for text, wanted in zip(texts, ask(texts), strict=True):
            assert stringify(text) == wanted, text


doubles = st.floats(allow_nan=False, allow_infinity=False)
# The decimals that people write, and those around the places where the notation changes.
written = st.one_of(
    doubles.map(repr),
    st.builds("{}e{}".format, st.integers(-(10**18), 10**18), st.integers(-40, 40)),
    st.builds(
        "{}{}.{}".format,
        st.sampled_from(["", "-"]),
        st.integers(0, 10**8),
        st.from_regex(r"[0-9]{1,16}", fullmatch=True),
    ),
    st.builds("0.{}{}".format, st.integers(0, 9).map(lambda n: "0" * n), st.integers(0, 10**16)),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-(10**16), 10**16).map(str),
    st.integers().map(str),
)
texts_of_any = st.text(alphabet=st.characters(), max_size=12) | st.text(
    alphabet='\x00\\u0"d8\ud83d\ude00 :,1.', max_size=8
)
names = st.sampled_from(KEYS) | st.integers(0, 2**33).map(str) | texts_of_any


class Raw(float):
    """A number that is written into the JSON text just as it was drawn."""

    def __new__(cls, text: str) -> Raw:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def raw_json(value: Any, spaces: bool, ascii_only: bool) -> str:
    gap = " " if spaces else ""
    match value:
        case Raw():
            return value.text
        case dict():
            inner = (
                f"{json.dumps(k, ensure_ascii=ascii_only)}:{gap}{raw_json(v, spaces, ascii_only)}"
                for k, v in value.items()
            )
            return "{" + f",{gap}".join(inner) + "}"
        case list():
            return "[" + f",{gap}".join(raw_json(item, spaces, ascii_only) for item in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=ascii_only)


values = st.recursive(
    st.none() | st.booleans() | written.map(Raw) | texts_of_any,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=10,
)
documents = st.builds(raw_json, values, st.booleans(), st.booleans())


@pytest.mark.verify
def test_any_document_as_node_writes_it() -> None:
    with node(AGAIN) as ask:

        @EXAMPLES
        @given(st.lists(documents, min_size=1, max_size=4))
        def same(texts: list[str]) -> None:
            assert [stringify(text) for text in texts] == ask(texts)

        same()


@pytest.mark.verify
def test_any_number_as_node_writes_it() -> None:
    with node(AGAIN) as ask:

        @EXAMPLES
        @given(st.lists(written, min_size=1, max_size=20))
        def same(texts: list[str]) -> None:
            wanted = ask(texts)
            assert [stringify(text) for text in texts] == wanted
            assert [number(float(text)) for text in texts] == wanted

        same()


def test_numbers_at_every_power_of_ten_and_of_two_as_node_writes_them() -> None:
    """Where notations and roundings change, from all sides."""
    edges = [10.0**n for n in range(-323, 309)] + [2.0**n for n in range(-1074, 1024)]
    around = [repr(x) for edge in edges for x in (math.nextafter(edge, 0), edge, -edge, math.nextafter(edge, math.inf))]
    with node(AGAIN) as ask:
        for text, wanted in zip(around, ask(around), strict=True):
            assert stringify(text) == wanted, text


NO_JSON = [
    "",
    " ",
    "nul",
    "NaN",
    "[NaN]",
    "Infinity",
    "-Infinity",
    "01",
    "-",
    "1.",
    ".5",
    "+1",
    "1e",
    "[1,]",
    '{"a":1,}',
]
NO_JSON += [
    "{a:1}",
    "'a'",
    '"\n"',
    '"\\x"',
    '"\\u12"',
    '"a',
    "[1 2]",
    "1 2",
    "[1]]",
    '{"a" 1}',
    "\ufeff1",
    "\x0b1",
    "\xa01",
]
NO_JSON += ["٣", "[٣]", "tru", "[1,,2]", "[,1]", "{,}", '{"a":}', "--1", "0x1", "1_000", "\x00"]


def test_what_is_no_json_is_refused_as_by_node() -> None:
    with node(
        "const answer = (text) => { try { JSON.parse(text); return 'taken' } catch { return 'refused' } }"
    ) as ask:
        assert ask(NO_JSON) == ["refused"] * len(NO_JSON)
    for text in NO_JSON:
        with pytest.raises(ValueError, match=r"\w"):
            stringify(text)


@pytest.mark.parametrize("around", ["[{}]", '{{"a":{}}}'])
def test_nesting_that_cannot_be_read_is_a_value_error(around: str) -> None:
    opening, closing = around.replace("{}", "\x00").replace("{{", "{").replace("}}", "}").split("\x00")
    with pytest.raises(ValueError, match="nested too deeply"):
        stringify(opening * 100_000 + "1.0" + closing * 100_000)


def test_values_that_python_has_read() -> None:
    value = {"b": 2**53 + 1, "1": [1.0, -0.0, None, True, False, math.inf, math.nan, 10**400], "0": "\ud83d\ude00"}
    assert dumps(value) == '{"0":"😀","1":[1,0,null,true,false,null,null,null],"b":9007199254740992}'
    with pytest.raises(TypeError, match="set is not a value of JSON"):
        dumps({"a": {1}})
