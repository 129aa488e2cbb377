"""Content classes beside the four: declared by the app, allowed by one audited statement, else refused by everything."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.brokers import RedisServer
from tests.cli.conftest import Run, outrider
from tests.streams.conftest import name, redis_server

from outrider import Event, Outrider, PublishRefused
from outrider.dashboard.confidential import is_hidden
from outrider.doctor.doctor import examine_all
from outrider.errors import ConfigError
from outrider.inbox.inbox import destination_of
from outrider.inbox.receiver import retry_refused
from outrider.names import CONTENT_CLASSES
from outrider.postgres import connection, content_classes
from outrider.streams import RedisStreams

__all__ = ["name", "outrider", "redis_server"]


class Held(Event, type="legal.held", key="matter"):
    matter: str


Conn = psycopg.Connection[Any]
INSERT = "insert into outrider.outbox (event_type, source, payload, content_class) values ('legal.held', 'a', '{}', %s)"
ALLOW = "select outrider.allow_content_class('legal_hold')"


@pytest.fixture
def conn(database: str) -> Any:
    with psycopg.connect(database, autocommit=True) as session:
        yield session


def one(conn: Conn, query: str, *params: object) -> Any:
    row = conn.execute(query.encode(), params).fetchone()
    assert row is not None
    return row[0]


def test_every_writer_is_refused_until_it_is_allowed(conn: Conn) -> None:
    writers = (
        INSERT,
        "select outrider.publish('legal.held', '{}', content_class => %s)",
        "update outrider.outbox set content_class = %s",
    )
    conn.execute(INSERT.encode(), ["internal"])
    for query in writers:
        with pytest.raises(psycopg.errors.CheckViolation, match="outbox_content_class_known"):
            conn.execute(query.encode(), ["legal_hold"])
    with (
        pytest.raises(psycopg.errors.CheckViolation),
        conn.cursor().copy("copy outrider.outbox (event_type, source, payload, content_class) from stdin") as copy,
    ):
        copy.write_row(["legal.held", "a", "{}", "legal_hold"])
    assert one(conn, ALLOW) is True
    for query in writers:
        conn.execute(query.encode(), ["legal_hold"])
    for other in ("legal_hol", "legal_hold2", "", "paused", "content_class.legal_hold"):
        with pytest.raises(psycopg.errors.CheckViolation, match="outbox_content_class_known"):
            conn.execute(INSERT.encode(), [other])


async def test_publish_takes_what_the_app_declares_and_the_database_allows(database: str, conn: Conn) -> None:
    plain, legal = Outrider(dsn=database), Outrider(dsn=database, content_classes=["legal_hold"])
    async with await connection.connect(database) as session:
        with pytest.raises(
            PublishRefused, match="'legal_hold' is not one of public, internal, confidential, restricted"
        ):
            await plain.publish(session, Held(matter="m"), content_class="legal_hold")
        with pytest.raises(PublishRefused, match="restricted, legal_hold"):
            await legal.publish(session, Held(matter="m"), content_class="legal_hld")
        with pytest.raises(psycopg.errors.CheckViolation, match="outbox_content_class_known"):
            await legal.publish(session, Held(matter="m"), content_class="legal_hold")
        await session.rollback()
        one(conn, ALLOW)
        await legal.publish(session, Held(matter="m"), content_class="legal_hold")
        await legal.publisher(session).publish(legal.envelope(Held(matter="n"), content_class="legal_hold"))
        with pytest.raises(PublishRefused, match="'legal_hold' is not one of"):
            await plain.publish(session, Held(matter="m"), content_class="legal_hold")
        await session.commit()
    assert one(conn, "select count(*) from outrider.outbox where content_class = 'legal_hold'") == 2


async def test_a_handler_gets_it_and_its_receipt_has_it(database: str, conn: Conn) -> None:
    app, seen = Outrider(context="legal", dsn=database, content_classes=["legal_hold"]), []
    one(conn, ALLOW)

    @app.handler(Held, name="legal.note")
    async def note(event: Held, ctx: Any) -> None:
        seen.append(ctx.envelope.content_class)

    async with app:
        await app.migrate()
        async with app.connect() as session:
            await app.publish(session, Held(matter="m"), content_class="legal_hold")
        await app.drain()
    assert seen == ["legal_hold"]
    assert one(conn, "select content_class from outrider.event_handled") == "legal_hold"


def test_allowing_is_audited_once_and_its_place_can_be_changed(conn: Conn) -> None:
    allow = "select outrider.allow_content_class('legal_hold', 'confidential', p_by => 'ada', p_reason => 'matters')"
    assert [one(conn, allow), one(conn, allow), one(conn, ALLOW)] == [True, False, False]
    found = conn.execute("select action, by, details from outrider.audit").fetchall()
    details = {"content_class": "legal_hold", "like": "confidential", "reason": "matters"}
    assert found == [("allow_content_class", "ada", details)]
    assert one(conn, "select value from outrider.setting where name = 'content_class.legal_hold'") == 2
    conn.execute("select outrider.set_setting('content_class.legal_hold', '3')")
    with pytest.raises(psycopg.errors.DatabaseError, match="from 0 to 3"):
        conn.execute("select outrider.set_setting('content_class.legal_hold', '4')")
    with pytest.raises(psycopg.errors.DatabaseError, match="there is no setting"):
        conn.execute("select outrider.set_setting('content_class.other', '3')")


@pytest.mark.parametrize("wrong", ["public", "Legal", "", "a b", "x" * 64, "a.b", None, "ä"])
def test_a_class_that_cannot_be_allowed(conn: Conn, wrong: str | None) -> None:
    with pytest.raises(psycopg.errors.DatabaseError, match="a new content class is a lower-case word") as refused:
        one(conn, "select outrider.allow_content_class(%s)", wrong)
    assert refused.value.sqlstate == "OR010"
    with pytest.raises(psycopg.errors.DatabaseError, match="like one of public, internal, confidential, restricted"):
        one(conn, "select outrider.allow_content_class('legal_hold', %s)", wrong if wrong != "public" else "legal")


def test_an_app_declares_words(database: str) -> None:
    with pytest.raises(ConfigError, match="content_classes: 'legal_hold' is one text, not several"):
        Outrider(dsn=database, content_classes="legal_hold")
    with pytest.raises(ConfigError, match="content_classes: 'Legal Hold' is not a lower-case word"):
        Outrider(dsn=database, content_classes=["Legal Hold"])


async def test_the_doctor_names_a_class_that_is_declared_and_not_allowed(database: str, conn: Conn) -> None:
    app = Outrider(dsn=database, content_classes=["legal_hold"])

    async def said() -> list[tuple[str, str]]:
        async with await connection.connect(database, autocommit=True) as session:
            found = await examine_all(app, session, "outrider")
        return [(each.found, each.advice) for each in found if "content class" in each.found]

    assert await said() == [
        (
            "the app declares the content class legal_hold, which this database does not allow: its events are refused",
            "outrider setting allow-content-class legal_hold",
        )
    ]
    one(conn, ALLOW)
    assert await said() == []


def test_the_dashboard_hides_an_added_class_like_the_one_that_it_was_allowed_as() -> None:
    added = {"legal_hold": 2, "sealed": 3}
    hidden = {
        level: {each for each in (*added, "unknown", *CONTENT_CLASSES) if is_hidden(each, level, added)}
        for level in CONTENT_CLASSES
    }
    assert hidden == {
        "public": {"internal", "confidential", "restricted", "legal_hold", "sealed", "unknown"},
        "internal": {"confidential", "restricted", "legal_hold", "sealed", "unknown"},
        "confidential": {"restricted", "sealed", "unknown"},
        "restricted": {"unknown"},
    }
    assert is_hidden("restricted", "public", {"restricted": 0}), "the four stay what they are"


async def test_an_inbox_keeps_an_unknown_class_as_refused_until_its_database_allows_it(
    database: str, other_database: str, redis_server: RedisServer, name: str, conn: Conn
) -> None:
    there = Outrider(context="there", dsn=other_database)
    here = Outrider(context="legal", dsn=database, content_classes=["legal_hold", "sealed"])
    here.relay("legal.out", RedisStreams(redis_server.url, stream=name))
    there.inbox("there.in", RedisStreams(redis_server.url, stream=name))
    for each in ("legal_hold", "sealed"):
        one(conn, "select outrider.allow_content_class(%s)", each)
    with psycopg.connect(other_database, autocommit=True) as other:
        async with here, there:
            await here.migrate()
            await there.migrate()

            async def carry(*classes: str) -> list[str]:
                async with here.connect() as session:
                    for each in classes:
                        await here.publish(session, Held(matter="m"), content_class=each)
                await here.drain()
                await there.drain()
                return [found for (found,) in other.execute("select content_class from outrider.outbox order by seq")]

            assert await carry("legal_hold", "sealed", "legal_hold") == []
            reasons = [found for (found,) in other.execute("select message from outrider.stream_refused order by id")]
            assert len(reasons) == 3
            assert "content_class: 'legal_hold' is not one of" in reasons[0]
            assert "allow-content-class" in reasons[0]
            other.execute(ALLOW)
            assert await carry("legal_hold", "public", "sealed") == ["legal_hold", "public"]
            async with there.connect() as session:
                assert await content_classes.allowed(session, "outrider") == {"legal_hold": 3}
            assert one(other, "select count(*) from outrider.stream_refused") == 4
            [inbox] = there.inboxes
            async with await connection.connect(other_database, autocommit=True) as session:
                again = await retry_refused(session, "there.in", destination_of(inbox, there.settings), "outrider")
        assert (again.ingested, [kept.position for kept, _ in again.refused]) == (
            2,
            [at for (at,) in other.execute("select position from outrider.stream_refused order by id")],
        )


def test_the_command_allows_a_class(outrider: Run, database: str, conn: Conn) -> None:
    env = {"OUTRIDER_DSN": database}
    allow = (
        "setting",
        "allow-content-class",
        "legal_hold",
        "--like",
        "confidential",
        "--by",
        "ada",
        "--reason",
        "matters",
    )
    assert outrider(*allow, env=env).stdout == "legal_hold is allowed, and treated like confidential\n"
    assert outrider(*allow, env=env).stdout == "legal_hold was allowed before; nothing has changed\n"
    assert '"content_class": "sealed"' in outrider("setting", "allow-content-class", "sealed", "--json", env=env).stdout
    refused = outrider("setting", "allow-content-class", "public", env=env)
    assert refused.returncode == 1
    assert "a new content class is a lower-case word" in refused.stderr
    assert "content_class.legal_hold" in outrider("setting", "list", env=env).stdout
    assert (
        one(conn, "select details ->> 'reason' from outrider.audit where action = 'allow_content_class' limit 1")
        == "matters"
    )
