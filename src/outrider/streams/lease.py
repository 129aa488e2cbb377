"""A lease in Redis: who holds it is the active one, where a team wants to see it there. Never the only fence."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

from outrider.errors import BrokerUnavailable, ConfigError
from outrider.streams.redis import connect, need_client
from outrider.streams.url import REDIS, Address

if TYPE_CHECKING:
    from redis.asyncio import Redis

RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Lease(Protocol):
    """Held by one at a time, for `ttl` seconds unless it is renewed. BrokerUnavailable when nobody can say."""

    @property
    def ttl(self) -> float: ...

    async def acquire(self) -> bool:
        """Whether it is ours now, also when it was before."""
        ...

    async def renew(self) -> bool:
        """Let it begin anew; False when it is not ours any more."""
        ...

    async def release(self) -> None:
        """Give it up, if it is ours."""
        ...


class RedisLease:
    """`SET key token NX PX ttl`. By convention the key is `lock:outbox:<context>`."""

    def __init__(self, url: str, key: str, *, ttl: float = 30, timeout: float = 5) -> None:
        self._address = Address.of(url)
        if self._address.scheme not in REDIS:
            raise ConfigError(f"{self._address} is no Redis: its URL begins with {' or '.join(REDIS)}://")
        if ttl < 1:
            raise ConfigError(f"the lease's ttl is {ttl:g} s: at least 1 s, or it lapses between two renewals")
        need_client()
        self.key, self.ttl = key, ttl
        self._url, self._timeout = url, timeout
        self._token = secrets.token_hex(16)
        self._client: Redis | None = None

    def __repr__(self) -> str:
        return f"<RedisLease {self.key} at {self._address}>"

    async def acquire(self) -> bool:
        async with self._speaking() as redis:
            if await redis.set(self.key, self._token, nx=True, px=self._milliseconds):
                return True
            return bool(await redis.eval(RENEW, 1, self.key, self._token, self._milliseconds))

    async def renew(self) -> bool:
        async with self._speaking() as redis:
            return bool(await redis.eval(RENEW, 1, self.key, self._token, self._milliseconds))

    async def release(self) -> None:
        """Also closes the connection; `acquire` opens it again."""
        try:
            async with self._speaking() as redis:
                await redis.eval(RELEASE, 1, self.key, self._token)
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.aclose()

    @property
    def _milliseconds(self) -> int:
        return int(self.ttl * 1000)

    @contextlib.asynccontextmanager
    async def _speaking(self) -> AsyncIterator[Any]:
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(self._timeout):
                if self._client is None:
                    self._client = connect(self._url)
                yield self._client
        except (RedisError, OSError) as error:
            client, self._client = self._client, None
            if client is not None:
                with contextlib.suppress(RedisError, OSError):
                    await client.aclose()
            text = self._address.masked(error) or f"no answer within {self._timeout:g} s"
            raise BrokerUnavailable(f"{self._address} cannot be used: {text}") from error
