from __future__ import annotations

import psycopg


def test_smoke(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('a.b', 'reader', 'a', null)")
        conn.execute("select outrider.publish('x.y', '{}')")
        assert conn.execute("select outcome from outrider.take('a.b')").fetchone() == ("done",)
