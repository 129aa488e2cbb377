"""The channels on which publishers notify and workers listen."""

from __future__ import annotations

from collections.abc import Sequence

EVERY_CLASS = "outbox_classes"
"""Events with a channel class notify here too, whatever the class and the generation: see the SQL function notify."""


def channels(generation: int, classes: Sequence[str]) -> list[str]:
    """The channels of a generation: the one for all its workers, and one for each channel class."""
    base = f"outbox_gen_{generation}" if generation else "outbox_default"
    return [base, *(f"outbox_gen_{generation}_{each}" for each in classes)]


def counterpart(channel: str, generation: int, other: int) -> str:
    """The name that a channel of `generation` has in the generation `other`."""
    base, *_ = channels(generation, ())
    if channel == base:
        return channels(other, ())[0]
    return f"outbox_gen_{other}_{channel.removeprefix(f'outbox_gen_{generation}_')}"
