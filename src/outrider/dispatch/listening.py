"""`app.listener()`: an EventListener whose handlers get whole envelopes, of every type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from outrider.dispatch.handler import BUDGET, LIMIT, TIMEOUT, Handler
from outrider.dispatch.worker import Worker
from outrider.envelope import Envelope
from outrider.errors import DeclarationError
from outrider.protocols import EventHandler
from outrider.retry import DEFAULT_RETRY_POLICY
from outrider.subscription import Subscription


class Listening:
    """Each `listen` is a worker for one handler of its own subscription, which starts when it is first heard of.

    The receipt is written when the handler has returned: what the handler does outside happens at least once.
    """

    def __init__(self, context: str, work: Callable[[Handler, str], AbstractContextManager[Worker]]) -> None:
        self._context = context
        self._work = work

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        if not callable(handler):
            raise DeclarationError(f"{handler_name}: {handler!r} is not callable")

        async def call(envelope: Envelope, _: Any) -> None:
            if envelope.channel == channel:
                await handler(envelope)

        subscription = Subscription(handler_name, "handler", self._context, ())
        listening = Handler(subscription, call, False, False, DEFAULT_RETRY_POLICY, TIMEOUT, LIMIT, BUDGET, models={})
        with self._work(listening, channel) as worker:
            await worker.run()
