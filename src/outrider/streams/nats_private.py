"""Every use of private API of nats-py, which may change with any release of it: pyproject.toml has an upper bound.

Before you raise the bound, run tests/streams/test_nats_private.py. Where it fails, it says what to compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client

RawHandler = Callable[[bytes, bytes | None, bytes], None]
"""Gets the subject, the headers and the data of a message."""


class RawClient(Client):
    """A client that can send protocol commands and receive the messages of one subscription as plain bytes.

    For every message the library makes an object and a turn of the event loop. At thousands of messages per second that is
    most of the work.
    """

    def __init__(self, check_server: Callable[[dict[str, Any]], None]) -> None:
        """`check_server` gets the server's INFO before the login; if it raises, no password is sent."""
        super().__init__()
        self._check_server = check_server
        self._raw_handler: RawHandler | None = None
        self._raw_subscription: int | None = None

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> None:
        self._raw_handler = handler
        self._raw_subscription = (await self.subscribe(subject))._id

    async def send_raw(self, commands: bytes) -> None:
        """Send whole protocol commands, such as HPUB. The library only writes when its task gets a turn, hence the sleep."""
        await self._send_command(commands)
        await self._flush_pending()
        await asyncio.sleep(0)

    def _connect_command(self) -> bytes:
        self._check_server(self._server_info)
        return super()._connect_command()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid == self._raw_subscription and self._raw_handler is not None:
            self._raw_handler(bytes(subject), headers, data)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)
