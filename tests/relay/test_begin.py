"""Streams that are not as the relay needs them, and streams that it has begun and does not know: it goes on."""

from __future__ import annotations

import nats
import pytest
from tests.brokers import NatsServer
from tests.relay.depot import depot, ids_in

from outrider.signals import BrokerDown, BrokerUp, Relayed, Rewound
from outrider.streams import StreamMissing
from outrider.streams.nats import JetStream
from outrider.testing import expect


async def test_a_stream_with_other_subjects_is_an_outage(database: str, nats_server: NatsServer, name: str) -> None:
    """It was deleted, and made anew with a configuration that does not fit: no event is to blame."""
    sink = JetStream(nats_server.url, stream=name)
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        sent = await house.publish_many(3)
        await house.app.drain()
        await stream.delete_stream(name)
        await stream.add_stream(name=name, subjects=[f"{name}.other"])
        sent += await house.publish_many(3, start=3)
        for _ in range(3):
            with pytest.raises(
                StreamMissing, match=rf"does not take the subject '{name}.depot.sent': add it \(nats stream"
            ):
                await house.app.drain()
        assert await house.rows("select * from outrider.delivery") == [], "an attempt was used"
        async with house.app.worker():
            async with expect(house.app, BrokerDown, times=2) as down:
                pass
            assert "does not take the subject" in down[-1].message
            async with expect(house.app, Relayed), expect(house.app, BrokerUp):
                await stream.update_stream(name=name, subjects=[f"{name}.>"])
        assert await ids_in(sink, name) == sent
    await client.close()


async def test_a_stream_that_was_deleted_is_made_again_if_asked(
    database: str, nats_server: NatsServer, name: str
) -> None:
    """Also by a relay that is connected all the time."""
    sink = JetStream(nats_server.url, stream=name, create=True)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, poll=0.1)
        await house.app.migrate()
        async with house.app.worker():
            async with expect(house.app, Relayed):
                sent = await house.publish("a1")
            client = await nats.connect(nats_server.url)
            async with expect(house.app, Relayed), expect(house.app, Rewound):
                await client.jetstream().delete_stream(name)
            await client.close()
        assert await ids_in(sink, name) == sent
