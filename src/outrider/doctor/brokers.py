"""What a doctor asks a broker: whether it can lose what it has acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from outrider.doctor.finding import Finding, critical, note, ok, warning
from outrider.error_text import describe
from outrider.errors import BrokerUnavailable, StreamMissing


async def judge_broker(names: Sequence[str], stream: Any, longest: float) -> list[Finding]:
    """`stream` is the sink or the source of those subscriptions. One that does not say how durable it is, is taken at its
    word. Sinks may be anybody's: whatever they raise is a finding."""
    who, ask = ", ".join(names), getattr(stream, "weaknesses", None)
    try:
        async with asyncio.timeout(longest):
            if ask is None:
                await stream.open()
            weaknesses = [] if ask is None else await ask()
    except StreamMissing as error:
        return [critical("brokers", f"{who}: {error}", "make the stream; events wait in the log meanwhile")]
    except BrokerUnavailable as error:
        return [critical("brokers", f"{who}: {error}", "events wait in the log; it goes on by itself once it answers")]
    except TimeoutError:
        return [
            critical(
                "brokers", f"{who}: {told_of(stream)} gave no answer within {longest:g} s", "events wait in the log"
            )
        ]
    except Exception as error:
        return [warning("brokers", f"{who}: could not be asked: {describe(error)}", "look at its own log")]
    finally:
        with suppress(Exception):
            async with asyncio.timeout(longest):
                await stream.close()
    found = [(warning if each.grave else note)("brokers", f"{who}: {each.found}", each.advice) for each in weaknesses]
    return found or [ok("brokers", f"{who}: {told_of(stream)} keeps what it acknowledges")]


def told_of(stream: object) -> str:
    """Its repr, which may be anybody's too."""
    try:
        return repr(stream)
    except Exception:
        return object.__repr__(stream).split()[0].removeprefix("<") + f" {id(stream):x}"
