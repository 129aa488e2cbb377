"""What app.rollup takes, what it refuses and in which words, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.rollup.archive import NAME, NOTE, DocumentImported, PieceAdded, declared

from outrider import Event, Outrider
from outrider.errors import DeclarationError
from outrider.rollup import Check, Column, Notification, Parent
from outrider.rollup.rollup import MOST_CARRIED


class Bound(Event, type="archive.bound", version=3):
    """What has a default need not be carried."""

    piece_count: int
    title: str = "untitled"


class Needy(Event, type="archive.needy"):
    key: str
    title: str
    pages: int


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({"table": None}, "a rollup is on a table, table='orders', or on events, events=[OrderPlaced]"),
    "both": ({"events": [PieceAdded]}, "a rollup is on a table"),
    "a table's name": ({"table": "piece; drop table piece"}, "'piece; drop table piece' is no name of a table"),
    "capitals": ({"table": "Piece"}, "is no name of a table: write it like public.orders"),
    "half a quote": ({"table": 'public."pi"ece"'}, "is no name of a table"),
    "three parts": ({"table": "a.b.c"}, "is no name of a table"),
    "no text": ({"table": 7}, "7 is no name of a table"),
    "a table to notify": ({"notify": Notification("n n", {"a": "1"})}, "'n n' is no name of a table"),
    "nothing to notify": ({"notify": Notification("note", {})}, "notify has no columns to fill"),
    "itself to notify": (
        {"notify": Notification("public.piece", {"author": "key"})},
        "notify would fill the table that it stages, again and again: name another table",
    ),
    "a table to change": ({"columns": [Column("n;", "a", "text")]}, "'n;' is no name of a table"),
    "a table to check": ({"checks": [Check("n;", "a", "true")]}, "'n;' is no name of a table"),
    "a column to add": ({"columns": [Column("piece", "", "text")]}, "columns: is empty"),
    "its type": ({"columns": [Column("piece", "a", "")]}, "columns: is empty"),
    "a name of a check": ({"checks": [Check("note", "x" * 64, "true")]}, "checks: has 64 bytes, at most 63"),
    "what it checks": ({"checks": [Check("note", "x", "\x00")]}, "checks: contains \\u0000"),
    "no key": ({"key": []}, "key names no column: without one nothing can be grouped"),
    "an empty key": ({"key": ""}, "key is empty"),
    "an empty column": ({"key": [""]}, "key: is empty"),
    "a long column": ({"key": ["x" * 64]}, "key: has 64 bytes, at most 63 are allowed"),
    "a number": ({"key": [1]}, "key: 1 is int, not str"),
    "an unstorable key": ({"key": "\x00"}, "key contains \\u0000"),
    "carry as text": ({"carry": "id"}, "carry='id' is text: write a list of names"),
    "too many": ({"carry": [f"c{n}" for n in range(MOST_CARRIED + 1)]}, "carry names 41 columns, at most 40"),
    "hidden": ({"carry": ["id", "key", "last_at"]}, "carry=['key', 'last_at'] would hide what every rollup event has"),
    "too many expressions": (
        {"carry": {f"c{n}": "1" for n in range(MOST_CARRIED + 1)}},
        "carry names 41 columns, at most 40",
    ),
    "hidden expressions": ({"carry": {"key": "1"}}, "carry=['key'] would hide what every rollup event has"),
    "an empty expression": ({"carry": {"id": ""}}, "carry: id is empty"),
    "an expression that is none": ({"carry": {"id": 7}}, "carry: id 7 is int, not str"),
    "first as text": ({"first": "id"}, "first='id' is text: write a list of names"),
    "first of what is not carried": (
        {"first": ["id", "kind", "body"]},
        "first names body, kind, which carry does not",
    ),
    "the first time": (
        {"carry": ["at"], "first": ["at"], "single": "a.b"},
        "first=['first_at'] would hide what every rollup event has",
    ),
    "first and carried": ({"first": {"author": "id"}}, "first and carry both give author: rename one of them"),
    "first of a number": ({"first": {"first_id": 1}}, "first: 1 is int, not str"),
    "a parent's table": ({"parent": Parent("n;", "true")}, "'n;' is no name of a table"),
    "a parent without a key": ({"parent": Parent("note", "")}, "parent: on is empty"),
    "an empty condition": ({"when": ""}, "when is empty"),
    "no text as workspace": ({"workspace": 7}, "workspace 7 is int, not str"),
    "a type": ({"single": "No Type"}, "single: the event type 'No Type' is not lower-case words"),
    "no event": ({"rollup": int}, "rollup=<class 'int'> is neither an Event class nor an event type"),
    "a needy single": ({"single": Needy}, "Needy needs key, pages, title, but it gets the carried columns"),
    "a needy rollup": (
        {"rollup": Needy},
        "Needy needs pages, title, but it gets key, piece_count, first_at and last_at; carried columns may be missing",
    ),
    "a needy rollup with a first": (
        {"rollup": Needy, "carry": ["id", "author", "title"], "first": {"title_1": "title", "pages": "id"}},
        "Needy needs title, but it gets key, piece_count, first_at, last_at, title_1 and pages; carried columns",
    ),
    "a loop": (
        {"table": None, "events": [DocumentImported], "key": ["key"]},
        "it would emit what it stages, again and again: emit other event types",
    ),
    "a scheduler": ({"scheduler": "cron"}, "scheduler='cron' is none of auto, pg_cron, worker"),
    "one": ({"threshold": 1}, "threshold=1 is not a whole number from 2 to 50"),
    "fifty-one": ({"threshold": 51}, "threshold=51"),
    "truth": ({"threshold": True}, "threshold=True"),
    "59 seconds": ({"debounce": 59}, "debounce=59 is not a whole number of seconds from 60 to 300"),
    "301 seconds": ({"debounce": 301}, "debounce=301"),
    "half a second": ({"debounce": 60.5}, "debounce=60.5"),
    "a day and more": ({"max_wait": 86_401}, "max_wait=86401"),
    "a wait too short": ({"debounce": 100, "max_wait": 99}, "max_wait=99 s is shorter than debounce=100 s"),
    "too often": ({"every": 9}, "every=9 is not a whole number of seconds from 10 to 3,600"),
}


@pytest.mark.parametrize("given", REFUSED)
def test_refused(given: str) -> None:
    changes, message = REFUSED[given]
    with pytest.raises(DeclarationError) as error:
        declared(**changes)
    assert str(error.value).startswith(f"{NAME}: ")
    assert message in str(error.value)


def test_names() -> None:
    app = Outrider(context="archive")
    options: dict[str, Any] = {"table": "piece", "key": ["a"], "single": "a.b", "rollup": "a.c"}
    for wrong in ("", "Archive", "a b", "a..b", "a.b;", "1a", "ä", 'a"', "x" * 48, None, 7):
        with pytest.raises(DeclarationError, match="the name of the rollup"):
            app.rollup(wrong, **options)  # type: ignore[arg-type]
    app.rollup("x" * 47, **options)
    app.rollup("a.b", **options)
    with pytest.raises(DeclarationError, match=r"'a\.b' is declared twice"):
        app.rollup("a.b", **options)

    @app.handler(PieceAdded, name="archive.handled")
    async def handled(event: PieceAdded) -> None: ...

    with pytest.raises(DeclarationError):
        app.rollup("archive.handled", **options)
    with pytest.raises(DeclarationError):
        app.handler(PieceAdded, name="a.b")(handled)
    with pytest.raises(TypeError, match="a rollup has no option colour, size"):
        app.rollup("a.d", **options, size=1, colour=2)  # type: ignore[call-arg]
    assert [each.name for each in app.rollups] == ["x" * 47, "a.b"]


def test_the_declaration_as_sql_takes_it() -> None:
    spec = declared(
        table='"My ""Schema"""."Stücke"',
        key="new.a || '%s'",
        when="new.kind = 'piece'",
        workspace="new.tenant",
        single="a.single",
        rollup=Bound,
        carry=("id", "Größe"),
        debounce="2m",
        max_wait="1h",
        every="30s",
        threshold=50,
        notify=NOTE,
        columns=[Column("piece", "Neu", "text")],
        checks=[Check("other.note", "c", "true")],
        scheduler="worker",
    )
    assert (
        spec
        == json.loads(json.dumps(spec))
        == {
            "name": NAME,
            "context": "archive",
            "table": '"My ""Schema"""."Stücke"',
            "events": None,
            "when": "new.kind = 'piece'",
            "key": "new.a || '%s'",
            "carry": ["id", "Größe"],
            "workspace": "new.tenant",
            "single": "a.single",
            "single_version": 1,
            "rollup": "archive.bound",
            "rollup_version": 3,
            "debounce": 120,
            "threshold": 50,
            "max_wait": 3600,
            "every": 30,
            "scheduler": "worker",
            "columns": [{"table": "public.piece", "name": "Neu", "type": "text"}],
            "checks": [{"table": "other.note", "name": "c", "check": "true"}],
            "notify": {"table": "public.note", "columns": dict(NOTE.columns)},
        }
    )
    more = declared(
        carry={"id": "new.id", "title": "parent.title"}, first=["id"], parent=Parent("book", "parent.id = new.book")
    )
    assert more["carry"] == {"id": "new.id", "title": "parent.title"}
    assert more["first"] == {"first_id": "id"}
    assert more["parent"] == {"table": "public.book", "on": "parent.id = new.book"}
    plain = declared()
    assert not {"first", "parent"} & set(plain), "what was installed before is still as declared"
    assert (plain["table"], plain["key"]) == ("public.piece", ["document", "batch"])
    assert (plain["debounce"], plain["threshold"], plain["max_wait"], plain["every"]) == (90, 2, 600, 120)
    assert (plain["scheduler"], plain["columns"], plain["checks"], "notify" in plain) == ("auto", [], [], False)
    events = declared(table=None, events=[Bound, Needy], key=["title"])
    assert (events["table"], events["events"]) == (None, ["archive.bound", "archive.needy"])
