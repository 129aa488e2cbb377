"""A lease in Redis that shows who is active, for teams that want to see it there. It is never the only protection."""

from __future__ import annotations

import secrets
from typing import Protocol

from outrider.errors import ConfigError
from outrider.streams.redis_connection import RedisConnection

RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Lease(Protocol):
    """Held by one process at a time, for `ttl` seconds unless renewed. Raises BrokerUnavailable."""

    @property
    def ttl(self) -> float: ...

    async def acquire(self) -> bool:
        """True if the lease is ours now, including when it already was."""
        ...

    async def renew(self) -> bool:
        """Extend it by `ttl`; False if it is no longer ours."""
        ...

    async def release(self) -> None:
        """Give it up if it is ours."""
        ...


def check_ttl(ttl: float) -> None:
    if ttl < 1:
        raise ConfigError(f"the lease's ttl is {ttl:g} s: use at least 1 s, or it expires between two renewals")


class RedisLease:
    """`SET key token NX PX ttl`. By convention the key is `lock:outbox:<context>`."""

    def __init__(self, url: str, key: str, *, ttl: float = 30, timeout: float = 5) -> None:
        """`ttl`, `timeout`: seconds until the lease expires, and to wait for an answer."""
        self._connection = RedisConnection(url, timeout)
        check_ttl(ttl)
        self.key, self.ttl = key, ttl
        self._token = secrets.token_hex(16)

    def __repr__(self) -> str:
        return f"<RedisLease {self.key} at {self._connection.address}>"

    async def acquire(self) -> bool:
        async with self._connection.client() as redis:
            if await redis.set(self.key, self._token, nx=True, px=self._milliseconds):
                return True
            return bool(await redis.eval(RENEW, 1, self.key, self._token, self._milliseconds))

    async def renew(self) -> bool:
        async with self._connection.client() as redis:
            return bool(await redis.eval(RENEW, 1, self.key, self._token, self._milliseconds))

    async def release(self) -> None:
        """Also closes the connection; `acquire` opens it again."""
        try:
            async with self._connection.client() as redis:
                await redis.eval(RELEASE, 1, self.key, self._token)
        finally:
            await self._connection.close()

    @property
    def _milliseconds(self) -> int:
        return int(self.ttl * 1000)
