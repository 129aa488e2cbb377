"""The channels on which publishers notify and workers listen."""

from __future__ import annotations

from collections.abc import Sequence

from outrider import names

EVERY_CLASS = "outbox_classes"
"""Events with a channel class notify here too, whatever the class and the generation: see the SQL function notify."""


def channels(generation: int, classes: Sequence[str]) -> list[str]:
    """The channels of a generation: the one for all its workers, and one for each channel class."""
    return [names.channel_of(generation), *(names.channel_of(generation, each) for each in classes)]


def counterpart(channel: str, generation: int, other: int) -> str:
    """The name that a channel of `generation` has in the generation `other`."""
    if channel == names.channel_of(generation):
        return names.channel_of(other)
    return names.channel_of(other, channel.removeprefix(names.channel_of(generation, "")))
