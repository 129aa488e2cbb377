"""Fault 16: raw SQL can write any JSON. What cannot be decoded is one dead letter each; its neighbours are handled."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from tests.faults import subject
from tests.faults.subject import NAMES, Producer
from tests.oracle import Oracle, check

pytestmark = pytest.mark.verify

POISON = {
    "nested 2,000 deep": '{"key": "x", "n": 1, "extra": ' + "[" * 2000 + "]" * 2000 + "}",
    "nested where a number should be": '{"key": "x", "n": ' + "[" * 2000 + "]" * 2000 + "}",
    "5,000 digits": '{"key": "x", "n": ' + "9" * 5000 + "}",
    "5,000 digits in a field that nobody reads": '{"key": "x", "n": 1, "extra": ' + "9" * 5000 + "}",
    "1e400": '{"key": "x", "n": 1e400}',
    "the later of two equal keys": '{"key": "x", "n": 1, "n": "one"}',
    "text for a number": '{"key": "x", "n": "one"}',
    "a number for text": '{"key": 7, "n": 1}',
    "null": '{"key": null, "n": null}',
    "an array": "[1, 2]",
    "a scalar": '"x"',
    "nothing": "null",
    "an empty object": "{}",
}
HARMLESS = {
    "unknown fields": '{"key": "%s", "n": %d, "extra": {"a": [1, 2.5, null]}}',
    "two equal keys": '{"n": "one", "key": "%s", "n": %d}',
    "escapes": '{"key": "%s", "n": %d, "\\ud83d\\ude00": "\\u202e<script>"}',
}
INSERT = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
            values ('fault.fact', 'fault', %s, %s::text::jsonb)"""


@pytest.mark.parametrize("lines", ["one line", "a line each"])
async def test_undecodable_payloads(database: str, tmp_path: Path, lines: str) -> None:
    """Between good events of the same line, and between those of others; for single, batch and blocking handlers."""
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    producer, poison = Producer(database, oracle), []
    with psycopg.connect(database, autocommit=True) as conn:
        for place, payload in enumerate(POISON.values()):
            key = "one" if lines == "one line" else f"poison{place}"
            await producer.publish(2, key="one")
            conn.execute(INSERT, [key, payload])
            poison.append((key, 0))
        for payload in HARMLESS.values():
            key, n = oracle.next("one")
            conn.execute(INSERT, [key, payload % (key, n)])
            oracle.write([(key, n)], "ok")
        await producer.publish(2, key="one")
    async with subject.make(database) as app:
        await subject.heal(app, database)
    check(database, oracle, dead=[(name, fact) for name in NAMES for fact in poison], unsuspected=True)
    with psycopg.connect(database) as conn:
        codes = conn.execute("select distinct last_error_code, attempts, status from outrider.delivery").fetchall()
        assert codes == [("undecodable", 1, "failed")]
        messages = [row[0] for row in conn.execute("select last_error from outrider.delivery").fetchall()]
    assert all(len(message.encode()) <= 8192 and "is not a Fact" in message for message in messages)
    assert json.dumps(messages).isascii()
