"""`app.listener()`: an EventListener whose handlers get whole envelopes, of every type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from outrider import names
from outrider.envelope import Envelope
from outrider.errors import DeclarationError
from outrider.protocols import EventHandler
from outrider.worker.channels import channels, counterpart
from outrider.worker.handler import Handler
from outrider.worker.worker import Worker


class Listening:
    """Each `listen` runs a worker for one handler, with a subscription of its own that starts with the first call.

    The receipt commits after the handler has returned, so effects outside of the database happen at least once.
    """

    def __init__(
        self, context: str, generation: int, work: Callable[[Handler, str], AbstractContextManager[Worker]]
    ) -> None:
        self._context = context
        self._generation = generation
        self._work = work

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        if not callable(handler):
            raise DeclarationError(f"{handler_name}: {handler!r} is not callable")
        name = self._name(channel, handler_name)

        async def call(envelope: Envelope, _: Any) -> None:
            own_channel = counterpart(channel, self._generation, envelope.generation)
            if envelope.channel == own_channel and inspect.isawaitable(answer := handler(envelope)):
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
