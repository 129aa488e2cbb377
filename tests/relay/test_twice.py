"""The same envelope, published twice, as after a COMMIT whose answer was lost: two rows of the log with one id.

A stream holds it once or twice, as its broker can tell; nothing is lost and nothing waits.
"""

from __future__ import annotations

import pytest
from tests.relay.depot import Depot, Sent, depot, ids_in

from outrider import Envelope
from outrider.streams import Sink
from outrider.streams.nats import JetStream


async def publish(house: Depot, *envelopes: Envelope) -> None:
    async with house.app.connect() as conn, conn.transaction():
        await house.app.publish_many(conn, envelopes)


@pytest.mark.parametrize("relayed", [False, True])
async def test_what_was_published_twice_holds_up_nothing(database: str, sink: Sink, name: str, relayed: bool) -> None:
    """JetStream knows the id for its duplicate window, 120 s by default; Redis does not look at it."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        before, twice, after = (house.app.envelope(Sent(parcel=each)) for each in "abc")
        await publish(house, before, twice)
        if relayed:
            await house.app.drain()
        await publish(house, twice)
        await publish(house, after)
        await house.app.drain()
        seen = [twice] if isinstance(sink, JetStream) else [twice, twice]
        assert await ids_in(sink, name) == [each.id for each in (before, *seen, after)]
        assert await house.rows("select * from outrider.stream_ahead") == []
        assert await house.rows("select * from outrider.event_status where status <> 'delivered'") == []


async def test_several_of_them_in_one_batch(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        a, b, c, d = (house.app.envelope(Sent(parcel=each)) for each in "abcd")
        await publish(house, a, b)
        await house.app.drain()
        again = (a, c, b, a, d, b)
        for each in again:
            await publish(house, each)
        await house.app.drain()
        seen = (c, d) if isinstance(sink, JetStream) else again
        assert await ids_in(sink, name) == [each.id for each in (a, b, *seen)]
