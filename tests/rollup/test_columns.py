"""What goes into the events: fields of the first row of a group, values of a parent, expressions."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures
from tests.rollup.test_install import refused
from tests.rollup.test_worker import Shelved, app_of

from outrider.rollup import Column, Notification, Parent

pytestmark = pytest.mark.also_on(15)

FIRST = {"first_id": "id", "first_writer": "author"}
LEAVES = """
create table book (id int primary key, title text, shelf text, series text);
create table leaf (id int generated always as identity primary key, book int, page int, writer text);
insert into book values (1, 'Moby', 'a', null), (2, 'Emma', 'b', 'Jane');
"""
TOUCHED = """
select pg_stat_get_xact_numscans('book'::regclass) as whole, pg_stat_get_xact_numscans('book_pkey'::regclass) as by_key,
       pg_stat_get_xact_tuples_fetched('book_pkey'::regclass) as fetched,
       pg_stat_get_xact_tuples_inserted('outrider.rollup_pending'::regclass) as staged,
       pg_stat_get_xact_numscans('outrider.rollup_pending'::regclass) as looked_at
"""
LEAF: dict[str, Any] = {
    "table": "leaf",
    "parent": Parent("book", on="parent.id = new.book"),
    "key": "coalesce(parent.series, parent.title)",
    "carry": {"id": "new.id", "title": "parent.title", "shelf": "upper(parent.shelf)", "by": "new.writer"},
    "single": "archive.single",
    "rollup": "archive.whole",
}


def payloads(place: Archive) -> list[dict[str, Any]]:
    return place.column("select payload - 'first_at' - 'last_at' from outrider.outbox order by seq")


# The first row


def test_fields_of_the_first_row(bare: Archive) -> None:
    """All of one row, the one that was staged first; only rollup events have them."""
    bare.install(first=FIRST)
    [first] = bare.add("a", author="zoe")
    bare.add("a", author="ada")
    [other, _] = bare.add("b", "b", author="bob")
    [lone] = bare.add("c", author="cleo")
    assert figures(bare.tick(flush=True)) == ("processed", 2, 1, 0, 5, 0)
    assert payloads(bare) == [
        {"key": "a", "piece_count": 2, "first_id": first, "first_writer": "zoe"},
        {"key": "b", "piece_count": 2, "first_id": other, "first_writer": "bob", "author": "bob"},
        {"id": lone, "author": "cleo"},
    ]
    # A list names the carried columns. A column that is null is null here too.
    bare.install(first=["author"])
    bare.add("d", "d")
    bare.tick(flush=True)
    assert payloads(bare)[-1] == {"key": "d", "piece_count": 2, "author": None, "first_author": None}
    # What waits from before may lack a field.
    bare.add("e", "e")
    bare.install(carry=["id", "author", "batch"], first=["batch"])
    bare.tick(flush=True)
    assert payloads(bare)[-1] == {"key": "e", "piece_count": 2, "author": None, "first_batch": None}
    bare.exact()


def test_two_authors_and_a_column_that_must_not_be_null(bare: Archive) -> None:
    """They agree on no author: the notification has that of the first. A first row that is refused leaves it to the next."""
    bare.ask("alter table note add by text not null check (by <> 'eve')")
    author = "coalesce(payload ->> 'first_writer', payload ->> 'author')"
    bare.install(first=FIRST, notify=Notification("note", {**NOTE.columns, "by": author}))
    bare.add("a", author="zoe")
    bare.add("a", author="ada")
    bare.add("b", author="eve")
    bare.add("b", author="bob")
    bare.add("b", author="cleo")
    tick = bare.tick(flush=True)
    assert figures(tick) == ("processed", 2, 0, 0, 4, 1), tick
    assert bare.ask("select subject, by, pieces from note order by id") == [
        {"subject": "a", "by": "zoe", "pieces": 2},
        {"subject": "b", "by": "bob", "pieces": 2},
    ]
    assert [each[:6] for each in bare.aside()] == ["23514:"]
    bare.exact()


# The parent


def test_values_of_a_parent(bare: Archive) -> None:
    bare.ask(LEAVES)
    found = bare.findings(**LEAF)
    assert {topic: row["detail"] for topic, row in found.items() if row["blocks"] and not row["passed"]} == {}
    assert found["trigger cost"]["detail"] == "one insert, 1 look-ups by a unique key"
    bare.install(**LEAF)
    bare.ask(
        "insert into leaf (book, writer) values (1, 'ada'), (1, 'bob'), (2, 'ada'), (7, 'nobody''s'), (null, 'lost')"
    )
    assert bare.staged() == ["Moby", "Moby", "Jane", None, None]
    assert figures(bare.tick(flush=True)) == ("processed", 1, 3, 0, 5, 0)
    assert payloads(bare) == [
        {"key": "Moby", "piece_count": 2, "title": "Moby", "shelf": "A"},
        {"id": 3, "title": "Emma", "shelf": "B", "by": "ada"},
        {"id": 4, "title": None, "shelf": None, "by": "nobody's"},
        {"id": 5, "title": None, "shelf": None, "by": "lost"},
    ]
    assert not [row for row in bare.verified().values() if row["blocks"] and not row["passed"]]
    # A parent that comes with the row, in one statement.
    bare.ask("with b as (insert into book values (3, 'Ulysses') returning id) insert into leaf (book) select id from b")
    assert bare.staged() == ["Ulysses"]
    bare.tick(flush=True)
    # As it is when the row is inserted, in its transaction; and an insert does not fail for what becomes of the parent.
    with bare.conn.transaction():
        bare.ask("update book set title = 'Emma 2', series = null where id = 2; insert into leaf (book) values (2)")
    bare.ask("alter table book rename title to name; insert into leaf (book) values (2)")
    assert bare.staged() == ["Emma 2"]
    assert 'record "parent" has no field "title"' in bare.aside()[0]
    bare.ask("alter table book rename to tome; insert into leaf (book) values (2)")
    assert 'relation "public.book" does not exist' in bare.aside()[1]


def test_it_is_one_look_up_whatever_waits(bare: Archive) -> None:
    bare.ask(LEAVES)
    bare.ask("insert into book select n, 'title' from generate_series(3, 3000) as n; analyze book")
    bare.install(**LEAF)
    for waiting in (0, 20_000):
        bare.ask("insert into leaf (book) select 1 from generate_series(1, %s)", waiting)
        with bare.conn.transaction():
            [before] = bare.ask(TOUCHED)
            bare.ask("insert into leaf (book) select n from generate_series(1, 100) as n")
            [after] = bare.ask(TOUCHED)
        assert {name: after[name] - before[name] for name in after} == {
            "whole": 0, "by_key": 100, "fetched": 100, "staged": 100, "looked_at": 0
        }  # fmt: skip


def test_a_parent_without_a_unique_key_is_refused(bare: Archive) -> None:
    bare.ask(LEAVES)
    bare.ask("create index on book (title); create view shelf as select * from book")
    for on in ("parent.title = new.writer", "true", "parent.id > new.book", "parent.id = new.book or parent.id = 1"):
        assert "more than one insert and one look-up" in refused(
            bare, topic="trigger cost", **{**LEAF, "parent": Parent("book", on=on)}
        )
    twice = "(select s.title from public.book as s where s.id = new.page)"
    assert "2 look-ups" in refused(bare, topic="trigger cost", **{**LEAF, "key": twice})
    for wrong in (
        {"parent": Parent("nowhere", on="true")},
        {"parent": Parent("book", on="parent.nothing = new.book")},
        {"parent": Parent("book", on="parent.id = new.nothing")},
        {"parent": Parent("book", on="true); drop table note; --")},
        {"parent": Parent("book", on="1")},
        {"key": "parent.nothing"},
        {"carry": {"a": "parent.nothing"}},
        {"carry": {"a": "1); drop table note; --"}},
        {"when": "parent.title = 'Emma'"},
        {"parent": None},
    ):
        refused(bare, topic="expressions", **{**LEAF, **wrong})
    assert bare.one("select count(*) from note") == 0


def test_columns_that_install_adds_to_the_parent(bare: Archive) -> None:
    """And a gateway that writes parent and row in one call: the preflight reads it."""
    bare.ask(LEAVES)
    options = {**LEAF, "key": "parent.source", "columns": [Column("book", "source", "text")]}
    assert bare.findings(**options)["stable key"]["detail"].startswith(
        "no function of this database inserts into public.book with a column of the key"
    )
    bare.install(**options)
    bare.ask("""
        create function save(title text, source text default null) returns int language plpgsql as $$
        declare found int;
        begin
            insert into book (id, title, source) values (9, title, source) returning id into found;
            insert into leaf (book, page) values (found, 1);
            return found;
        end $$
    """)
    assert bare.findings(**options)["stable key"] == {
        "topic": "stable key",
        "passed": True,
        "value": "BEFORE",
        "detail": "public.save(text,text) inserts it; grouping is FULL",
        "blocks": False,
    }
    bare.ask("select save('Ulysses', 'u.pdf')")
    assert bare.staged() == ["u.pdf"]
    kept = bare.ask("select what, why from outrider.rollup_plan(%s, true) where action = 'keep'", NAME)
    assert kept == [{"what": "drop the column public.book.source", "why": "1 rows hold data in it"}]


async def test_a_parent_of_events(bare: Archive, database: str) -> None:
    bare.ask("create table shelf (document text primary key, place text); insert into shelf values ('a', 'cellar')")
    app = app_of(
        database,
        table=None,
        events=[Shelved],
        parent=Parent("shelf", on="parent.document = new.payload ->> 'document'"),
        key="parent.place",
        carry={"document": "new.payload -> 'document'", "place": "parent.place", "seen": "new.event_version"},
        first=["document"],
        single="archive.single",
        rollup="archive.whole",
    )
    async with app:
        await app.migrate()
        assert (await app.install_rollup()).scheduler == "worker"
        async with app.connect() as conn, conn.transaction():
            for document in ("a", "b", "a"):
                await app.publish(conn, Shelved(document=document))
        await app.drain()
        await app.tick(NAME, flush=True)
    assert payloads(bare)[3:] == [
        {"key": "cellar", "piece_count": 2, "document": "a", "place": "cellar", "seen": 1, "first_document": "a"},
        {"document": "b", "place": None, "seen": 1},
    ]


def test_a_parent_of_another_owner(bare: Archive) -> None:
    """Its policies and types would run with the installer's rights."""
    bare.ask(LEAVES)
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user}; alter table book owner to {user}")
    try:
        found = bare.findings(**LEAF)["rights"]
        assert (found["passed"], found["value"], found["blocks"]) == (False, "ANOTHERS", True)
        assert f"public.book belongs to {user}" in found["detail"]
    finally:
        bare.ask(f"drop owned by {user}; drop role {user}")


def test_sql_alone(bare: Archive) -> None:
    """The declaration as JSON, with what it needs and no more."""
    bare.ask(LEAVES)
    spec = declared(**{**LEAF, "first": {"opened_by": "by"}})
    assert spec["parent"] == {"table": "public.book", "on": "parent.id = new.book"}
    assert spec["first"] == {"opened_by": "by"}
    assert not {"parent", "first"} & set(declared())
    bare.ask("select outrider.rollup_install(%s)", Jsonb(spec))
    bare.ask("insert into leaf (book, writer) values (1, 'ada'), (1, 'bob')")
    bare.tick(flush=True)
    assert payloads(bare)[0]["opened_by"] == "ada"
