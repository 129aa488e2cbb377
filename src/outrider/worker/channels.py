"""The channels on which publishers notify and workers listen."""

from __future__ import annotations

from collections.abc import Sequence


def channels(generation: int, classes: Sequence[str]) -> list[str]:
    """What publishers of this generation poke: everybody, and the named classes of workers."""
    base = f"outbox_gen_{generation}" if generation else "outbox_default"
    return [base, *(f"outbox_gen_{generation}_{each}" for each in classes)]


def counterpart(channel: str, generation: int, other: int) -> str:
    """What that channel of one generation is called in another."""
    base, *_ = channels(generation, ())
    if channel == base:
        return channels(other, ())[0]
    return f"outbox_gen_{other}_{channel.removeprefix(f'outbox_gen_{generation}_')}"
