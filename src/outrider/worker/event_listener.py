"""`app.listener()`: an EventListener whose handlers get whole envelopes, of every type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from outrider import names
from outrider.envelope import Envelope
from outrider.errors import DeclarationError
from outrider.protocols import EventHandler, TransactionHandler
from outrider.worker.channels import channels, counterpart
from outrider.worker.handler import Handler
from outrider.worker.handler_context import HandlerContext
from outrider.worker.worker import Worker


class Listening:
    """Each `listen` runs a worker for one handler, with a subscription of its own that starts with the first call.

    The claim, what the handler writes through the transaction, and the receipt commit together. The commit comes after the
    handler has returned, so effects outside of the transaction happen at least once.
    """

    def __init__(
        self, context: str, generation: int, work: Callable[[Handler, str], AbstractContextManager[Worker]]
    ) -> None:
        self._context = context
        self._generation = generation
        self._work = work

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler | TransactionHandler) -> None:
        if not callable(handler):
            raise DeclarationError(f"{handler_name}: {handler!r} is not callable")
        name, function, wants_tx = (
            self._name(channel, handler_name),
            cast(Callable[..., Any], handler),
            _wants_tx(handler),
        )

        async def call(envelope: Envelope, ctx: HandlerContext) -> None:
            if envelope.channel == counterpart(channel, self._generation, envelope.generation):
                answer = function(envelope, ctx.tx) if wants_tx else function(envelope)
                if inspect.isawaitable(answer):
                    await answer

        with self._work(Handler(name=name, context=self._context, events=(), call=call), channel) as worker:
            await worker.run()

    def _name(self, channel: str, handler_name: str) -> str:
        """Each channel class has a subscription of its own: events of other channels count as read there."""
        [everybody] = channels(self._generation, ())
        if channel == everybody:
            return handler_name
        [_, prefix] = channels(self._generation, [""])
        suffix = channel.removeprefix(prefix)
        if not channel.startswith(prefix) or names.wrong_word(suffix):
            raise DeclarationError(
                f"{handler_name}: nobody publishes to the channel {channel!r}: in generation {self._generation} there are "
                f"{everybody!r} and, for each channel_class, {prefix + '<class>'!r}"
            )
        return f"{handler_name}.{suffix}"


def _wants_tx(handler: Callable[..., object]) -> bool:
    """Whether it needs a second argument. One that it can do without is its own."""
    try:
        signature = inspect.signature(handler)
        signature.bind(None, None)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False
