"""A password, and what payloads hold, are in no line, no stored error, no metric, no answer and no list of processes."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import asyncpg
import psutil
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.db.utils import DatabaseError as DjangoError
from psycopg.conninfo import make_conninfo
from tests.brokers import RedisServer, free_port
from tests.cli import inprocess
from tests.cli.conftest import Run, Start
from tests.processes import until

from outrider.cli.main import fail
from outrider.doctor.finding import warning
from outrider.error_text import describe
from outrider.postgres.connection import connect_sync
from outrider.redaction import conceal, mask

SECRET = "hunter2-Xq7"  # of the database and the brokers
CONTENT = "4111-1111-Zk3"  # of payloads

APP = """
import os, psycopg
from pydantic import BaseModel
from outrider import Bury, Event, Job, Outrider, RetryPolicy
from outrider.streams import JetStream, RedisStreams

SECRET = {secret!r}
ONCE = RetryPolicy(retries=1, base="1h", cap="1h", jitter="none")

class Placed(Event, type="secret.placed", key="n"):
    n: int
    card: str

class Mail(Job, type="secret.mail"):
    card: str = ""

class Card(BaseModel):
    number: int

app = Outrider(context="shop", pool_size=2)
app.relay("shop.out", RedisStreams({redis!r}, stream="orders"), start="beginning")
app.relay("shop.lost", RedisStreams({closed!r}, stream="orders"), start="beginning")
app.relay("shop.wrong", RedisStreams({wrong!r}, stream="orders"), start="beginning")
app.relay("shop.away", JetStream("nats://" + SECRET + "@127.0.0.1:{port}", stream="orders"), start="beginning")
app.inbox("shop.in", RedisStreams({redis!r}, stream="in"))

def harm(n, card):
    match n:
        case 1:
            raise ConnectionError("cannot reach postgresql://shop:" + SECRET + "@db.internal:5432/shop")
        case 2:
            raise OSError("host=db.internal user=shop password='" + SECRET + "' did not answer")
        case 3:
            psycopg.connect("postgresql://shop:" + SECRET + "@127.0.0.1:{port}/shop", connect_timeout=5)
        case 4:
            Card(number=card)
        case 5:
            raise Bury("redis://:" + SECRET + "@cache:6379/0")
        case 6:
            with psycopg.connect({database!r}) as conn:
                conn.execute("create temporary table card (number text not null, paid int not null)")
                conn.execute("insert into card values (%s, null)", [card])

@app.handler(Placed, name="shop.pay", start="beginning", retry=ONCE)
async def pay(event, ctx):
    harm(event.n, event.card)

@app.handler(Placed, name="shop.file", start="beginning", retry=ONCE)
def file(event):
    harm(event.n, event.card)

@app.job(Mail, retry=ONCE)
async def mail(job):
    harm(1, job.card)

@app.job(on=Placed, name="shop.print", start="beginning", retry=ONCE)
async def printed(event):
    harm(event.n, event.card)
"""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer(password=SECRET) as broker:
        yield broker


@pytest.fixture
def folder(database: str, tmp_path: Path, redis: RedisServer) -> Path:
    port = free_port()
    closed = f"redis://:{SECRET}@127.0.0.1:{port}/0"
    wrong = redis.url.replace(SECRET, f"{SECRET}-wrong")
    text = APP.format(secret=SECRET, redis=redis.url, closed=closed, wrong=wrong, port=port, database=database)
    (tmp_path / "shop.py").write_text(text)
    with psycopg.connect(database, autocommit=True) as conn:
        for n in range(7):
            payload = json.dumps({"n": n, "card": CONTENT})
            trace = json.dumps({"traceparent": f"00-{7:032x}-{9:016x}-01", "baggage": CONTENT})
            conn.execute(
                "select outrider.publish('secret.placed', %s::jsonb, key => %s, trace_context => %s::jsonb)",
                [payload, str(n), trace],
            )
        conn.execute("select outrider.publish('secret.placed', %s::jsonb)", [json.dumps({"card": [CONTENT]})])
        conn.execute("select outrider.enqueue('secret.mail', %s::jsonb)", [json.dumps({"card": CONTENT})])
    return tmp_path


@pytest.mark.verify
def test_nothing_is_told(database: str, folder: Path, redis: RedisServer, start: Start) -> None:
    dsn = make_conninfo(database, password=SECRET)
    options = ("--app", "shop:app", "--dsn", dsn, "--processes", "2", "--metrics-port", "0", "--health-port", "0")
    worker = start("worker", *options, "--log-level", "debug", "--log-json")
    said: list[str] = []
    assert worker.stderr is not None
    hearing = Thread(target=lambda: said.extend(worker.stderr or ()), daemon=True)
    hearing.start()
    with psycopg.connect(database, autocommit=True) as conn:

        def owed() -> int:
            query = "select count(*) from outrider.owed where last_error is not null"
            [(count,)] = conn.execute(query).fetchall()
            return int(count)

        def down() -> set[str]:
            told = [json.loads(line) for line in said if '"broker_down"' in line]
            return {each["subscription"] for each in told}

        def urls() -> list[str]:
            return re.findall(r"(?:metrics|health) at (\S+)", "".join(said))

        until(lambda: owed() >= 22 and down() >= {"shop.lost", "shop.wrong", "shop.away"} and len(urls()) == 3, worker)
        answers = [answer(url) for url in urls()]
        processes = [each.cmdline() for each in psutil.Process(worker.pid).children(recursive=True)]
        assert len(processes) >= 2
        stored = []
        for table in ("delivery", "job"):
            query = f"select (to_jsonb(t) - '{{payload, trace_context}}'::text[])::text from outrider.{table} as t"
            stored += conn.execute(query.encode()).fetchall()
        for table in ("worker", "subscription", "stream", "audit", "setting"):
            stored += conn.execute(f"select to_jsonb(t)::text from outrider.{table} as t".encode()).fetchall()
    worker.terminate()
    worker.wait(60)
    hearing.join(60)
    told = {"log": "".join(said), "answers": "".join(answers), "errors": str(stored), "processes": str(processes)}
    for where, text in told.items():
        assert SECRET not in text, where
        assert CONTENT not in text, where
    assert "postgresql://shop:***@db.internal:5432/shop" in told["errors"]
    assert "outrider_completed_total" in told["answers"]
    assert '"event": "taken"' in told["log"], "it was said at debug level"

    commands = [
        ("status", "--app", "shop:app"),
        ("doctor", "--app", "shop:app"),
        ("relay", "list"),
        ("inbox", "list"),
        ("dlq", "list"),
        ("job", "list"),
        ("subscription", "list"),
    ]
    for command in commands:
        for ending in ((), ("--json",)):
            done = inprocess.run(folder, *command, *ending, "--dsn", dsn)
            assert done.returncode in (0, 1, 2), command
            shown = done.stdout + done.stderr
            assert shown.strip(), command
            assert SECRET not in shown, command
            assert CONTENT not in shown, command


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as found:
        return str(found.read().decode())


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://shop:{SECRET}@127.0.0.1:1/shop",
        f"host=127.0.0.1 port=1 password={SECRET}",
        f"postgresql://shop:{SECRET}%zz@127.0.0.1:1/shop",
        f"postgresql://shop:{SECRET}@[127.0.0.1/shop",
        f"nonsense {SECRET}",
        f"postgresql://shop:pa@{SECRET}@127.0.0.1:1/shop",
        f"postgresql://shop:{SECRET}/x@127.0.0.1:1/shop",
        f"host=127.0.0.1 port={SECRET}",
    ],
)
@pytest.mark.parametrize("command", ["status", "doctor", "migrate"])
def test_a_dsn_that_does_not_work_is_not_repeated(tmp_path: Path, command: str, dsn: str) -> None:
    done = inprocess.run(tmp_path, command, "--dsn", dsn)
    assert done.returncode in (1, 2)
    assert (done.stdout + done.stderr).strip()
    assert SECRET not in done.stdout + done.stderr


def test_the_dsn_comes_from_the_environment(outrider: Run, tmp_path: Path) -> None:
    done = outrider("status", env={"OUTRIDER_DSN": f"postgresql://shop:{SECRET}@127.0.0.1:1/shop"})
    assert "nothing listens at 127.0.0.1:1" in done.stderr
    assert SECRET not in done.stderr


def test_an_app_that_cannot_be_imported_does_not_tell_why_in_full(tmp_path: Path) -> None:
    (tmp_path / "unbuilt.py").write_text(f"raise ValueError('no postgresql://shop:{SECRET}@db/shop')")
    done = inprocess.run(tmp_path, "status", "--app", "unbuilt:app")
    assert (
        "importing 'unbuilt' failed with ValueError: no postgresql://shop:***@db/shop; for the traceback" in done.stderr
    )


def test_a_refusal_is_masked(capsys: pytest.CaptureFixture[str]) -> None:
    fail(f"no answer from redis://:{SECRET}@cache")
    assert capsys.readouterr().err == "outrider: no answer from redis://:***@cache\n"


def test_a_finding_is_masked() -> None:
    found = warning("brokers", f"Sink('redis://:{SECRET}@h')", f"look at nats://{SECRET}@h")
    assert (found.found, found.advice) == ("Sink('redis://:***@h')", "look at nats://***@h")


def refused_by(driver: str, dsn: str, statement: str) -> Exception:
    """What a handler would raise that uses that driver."""
    try:
        match driver:
            case "psycopg" | "django":
                with psycopg.connect(dsn) as conn:
                    conn.execute(statement.encode(), {"card": CONTENT})
            case "psycopg2":
                with closing(psycopg2.connect(dsn)) as old:
                    old.cursor().execute(statement, {"card": CONTENT})
            case "asyncpg":
                asyncio.run(by_asyncpg(dsn, statement))
            case "sqlalchemy":
                engine = sqlalchemy.create_engine(
                    "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=sqlalchemy.NullPool
                )
                with closing(engine.connect()) as alchemy:
                    alchemy.execute(sqlalchemy.text(statement.replace("%(card)s", ":card")), {"card": CONTENT})
    except Exception as error:
        if driver != "django":
            return error
        wrapped = DjangoError(*error.args)
        wrapped.__cause__ = error
        return wrapped
    raise AssertionError("it was taken")


async def by_asyncpg(dsn: str, statement: str) -> None:
    parts = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items()}
    conn = await asyncpg.connect(
        host=parts["host"], port=parts.get("port"), user=parts.get("user"), database=parts["dbname"]
    )
    try:
        await conn.execute(statement.replace("%(card)s", "$1"), CONTENT)
    finally:
        await conn.close()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django"])
def test_what_the_database_quotes_is_not_told(database: str, driver: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table card (number text unique, paid int not null)")
        conn.execute("insert into card values (%s, 1)", [CONTENT])
    for statement, told in [
        ("insert into card values (%(card)s, null)", ('column "paid"', '"card"', "not-null")),
        ("insert into card values (%(card)s, 2)", ('"card_number_key"', '"card"')),
        ("select cast(cast(%(card)s as text) as integer)", ("invalid input syntax for type integer",)),
    ]:
        said = describe(refused_by(driver, database, statement))
        assert all(part in said for part in told), said
        assert CONTENT not in said


def test_what_a_driver_itself_refuses_is_not_told_either(database: str) -> None:
    said = describe(refused_by("asyncpg", database, "insert into pg_class (oid) values (%(card)s)"))
    assert said.startswith("DataError: invalid input for query argument $")
    assert CONTENT not in said


def test_what_an_error_of_the_application_says_stays() -> None:
    error = ValueError('no "card" 17')
    error.__cause__ = psycopg.errors.InvalidTextRepresentation("no")
    assert describe(error) == 'ValueError: no "card" 17'


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:{}@h:5432/db failed", "postgresql://u:***@h:5432/db failed"),
        ("'postgres://u:a/b@{}@h/db'", "'postgres://u:***@h/db'"),
        ("postgresql://u:1234/{}@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:it's{}@h/db", "postgresql://u:***@h/db"),
        ("redis://:{}@h and nats://{}@h", "redis://:***@h and nats://***@h"),
        ("nats://u:a@b,tls://{}@c", "nats://u:***@b,tls://***@c"),
        ("nats://12/{}@h:4222", "nats://***@h:4222"),
        ("redis://default:{}", "redis://default:***"),
        ("host=h password={} dbname=d", "host=h password=*** dbname=d"),
        ("password='it\\'s {}' user=u", "password=*** user=u"),
        ("password='it''s {}' user=u", "password=*** user=u"),
        ("password=ab,{} user=u", "password=*** user=u"),
        ("password=b'{}' user=u", "password=*** user=u"),
        ("password=pa\\ {} user=u", "password=*** user=u"),
        ("password='cut {}", "password=***"),
        ("passwd={} pwd = {}", "passwd=*** pwd = ***"),
        ("password: {} host: h", "password: *** host: h"),
        ("alter role shop PASSWORD '{}'", "alter role shop PASSWORD ***"),
        ("postgresql://h/d?user=u&password={}&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("https://h/d?token={}&x=1", "https://h/d?token=***&x=1"),
        ("{'password': '{}', 'port': 1}", "{'password': ***, 'port': 1}"),
        ('{"api_key":{}} x', '{"api_key":*** x'),
        ("('password', '{}')", "('password', ***)"),
        ("Authorization: Bearer {}", "Authorization: ***"),
    ],
)
def test_masked(text: str, masked: str) -> None:
    hidden = text.replace("{}", SECRET)
    assert mask(hidden) == masked
    assert mask(masked) == masked, "once is enough"
    assert describe(OSError(hidden)) == f"OSError: {masked}"


@pytest.mark.parametrize(
    "text",
    [
        "https://h:8080/a and mail a@b.c",
        "https://h:8080/path?mail=a@b.c",
        "redis://10.0.0.1:6379/0 and redis://[::1]:6379",
        "postgresql://h1:5432,h2:5433/db",
        "1 validation error for Login: password: Field required",
        "unexpected token '<' of 3 tokens: bypass=1",
        "https://u@h/x",
        "write it like postgresql://user:password@host:5432/database",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_the_passwords_that_this_process_uses_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.redaction._concealed", ())
    conceal("p@ss-word")
    conceal("short")
    conceal("postgres")
    for word in ("abc", "password"):
        conceal(word)
    said = mask("xp@ss-wordx p%40ss-word short shorten abc: no postgresql password postgres")
    assert said == "x***x *** *** shorten abc: no postgresql password ***"


def test_opening_a_session_makes_its_password_known(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.redaction._concealed", ())
    connect_sync(make_conninfo(database, password=SECRET)).close()
    assert mask(f"told {SECRET}") == "told ***"


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a.",
        "://",
        "password=",
        "x://a:",
        "'",
        "password='\\",
        "password=''",
        "tls://@",
        " password",
        "@",
        "=\\ ",
        "pass: ",
    ],
)
def test_masking_is_quick_whatever_the_text(unit: str) -> None:
    """Ends at all: a pattern that goes back and forth would take hours for this."""
    for text in (unit * 70_000, "postgresql://u:" + unit * 70_000, "password=" + unit * 70_000):
        mask(text)
