"""Connections to one Redis server. Whatever goes wrong with them is raised as BrokerUnavailable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from outrider.errors import BrokerUnavailable, ConfigError, StreamMissing
from outrider.streams.url import REDIS, Address

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_CONNECTIONS = 16
"""Commands at a time, each on its own connection: a relay may append to hundreds of streams at once."""


class RedisConnection:
    """A pool of connections, opened with the first command. The client library is imported then, and not before."""

    def __init__(self, url: str, timeout: float) -> None:
        self.address = Address.of(url)
        if self.address.scheme not in REDIS:
            raise ConfigError(f"{self.address} is no Redis: the URL must begin with redis://, rediss:// or unix://")
        if find_spec("redis") is None:
            raise ConfigError("Redis needs its client: install outrider[redis]")
        self.timeout = timeout
        self._url = url
        self._client: Redis | None = None
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    @contextlib.asynccontextmanager
    async def client(self, seconds: float | None = None) -> AsyncIterator[Any]:
        """The client, for at most `seconds` (default: the timeout of the connection).

        The client itself closes a connection whose answer was not awaited, so no late answer is read. After an error the
        idle connections are closed too; those in use stay.
        """
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(self.timeout if seconds is None else seconds), self._slots:
                if self._client is None:
                    self._client = _connect(self._url)
                yield self._client
        except (RedisError, OSError) as error:
            if self._client is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            self.fail(error)

    def copy(self) -> RedisConnection:
        return RedisConnection(self._url, self.timeout)

    async def close(self) -> None:
        client, self._client = self._client, None
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        if client is not None:
            await client.aclose()

    def fail(self, error: Exception) -> NoReturn:
        text = self.address.masked(error) or f"no answer within {self.timeout:g} s"
        raise BrokerUnavailable(f"{self.address} cannot be used: {text}") from error

    def fail_wrong_type(self, stream: str) -> NoReturn:
        raise StreamMissing(
            f"the key {stream!r} of {self.address} is not a stream: give the stream another name, or delete the key "
            f"(redis-cli DEL {stream})"
        )


def _connect(url: str) -> Redis:
    """Without timeouts of the client: `asyncio.timeout` ends every wait, and some waits are meant to be long."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=None,
        socket_connect_timeout=None,
        retry=Retry(NoBackoff(), 0),
    )
