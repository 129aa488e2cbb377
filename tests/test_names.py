"""The rules for names at their limits, and their messages. And: no two classes of the project share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from outrider import names

WORDS = ["a", "shop", "shop_2", "a" * 63]
NOT_WORDS = ["", "Shop", "2shop", "_shop", "shop.orders", "sh op", "shöp", "shop\n", "shop-2", " shop", '"', "shop\x00"]


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    assert names.wrong_word(name) is None


@pytest.mark.parametrize("name", NOT_WORDS)
def test_not_words(name: str) -> None:
    assert names.wrong_word(name) == f"{name!r} is not a lower-case word (a letter, then letters, digits or _)"


def test_a_word_is_at_most_an_identifier() -> None:
    assert names.wrong_word("a" * 64) == "has 64 bytes, at most 63 are allowed"


@pytest.mark.parametrize("name", ["orders", "orders.placed", "a.b2.c_d", "a" * 200])
def test_dotted(name: str) -> None:
    assert names.wrong_dotted(name, 200) is None


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "Orders.placed", "a.2", "a b", "a.b\n", "a.é", "a/b"])
def test_not_dotted(name: str) -> None:
    assert names.wrong_dotted(name, 200) == f"{name!r} is not lower-case words joined by dots, like 'orders.placed'"


def test_dotted_is_limited() -> None:
    assert names.wrong_dotted("a" * 201, 200) == "has 201 bytes, at most 200 are allowed"


@pytest.mark.parametrize("text", ["a", " ", "🦊", "\x01", "a" * 10, "é" * 5, "\\u0000", "NULL"])
def test_text(text: str) -> None:
    assert names.wrong_text(text, 10) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is empty: leave it out instead"),
        ("ab\x00", "contains \\u0000 at position 2, which Postgres cannot store"),
        ("\ud83e", "contains the lone surrogate \\ud83e at position 0, which is not Unicode text"),
        ("a\udfff", "contains the lone surrogate \\udfff at position 1, which is not Unicode text"),
        ("a" * 11, "has 11 bytes, at most 10 are allowed"),
        ("é" * 6, "has 12 bytes, at most 10 are allowed"),
    ],
)
def test_not_text(text: str, wrong: str) -> None:
    assert names.wrong_text(text, 10) == wrong


@pytest.mark.parametrize("value", [None, 7, b"bytes", ["a"]])
def test_what_is_not_a_str_is_named_by_its_type(value: object) -> None:
    wanted = f"{value!r} is {type(value).__name__}, not str"
    assert [names.wrong_word(value), names.wrong_dotted(value, 9), names.wrong_text(value, 9)] == [wanted] * 3


def test_a_surrogate_pair_in_python_is_two_lone_ones() -> None:
    assert names.unstorable("\ud83e\udd8a") is not None
    assert names.unstorable("\U0001f98a") is None


def test_no_two_classes_share_a_name() -> None:
    source = Path(str(names.__file__)).parent
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{file.relative_to(source)}:{node.lineno}")
    shared = {name: where for name, where in found.items() if len(where) > 1}
    assert not shared, "give all but one of them another name"
