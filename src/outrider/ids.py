"""Event ids: UUID version 7, time-ordered, strictly increasing within a process."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0
_new, _set, _unknown = UUID.__new__, object.__setattr__, UUID(int=0).is_safe


def uuid7() -> UUID:
    """48 bits of milliseconds, a 26-bit counter with a random start, 48 random bits.

    The counter occupies rand_a and the upper part of rand_b, so that ids from the same millisecond stay in order.
    """
    global _last
    random = int.from_bytes(os.urandom(10), "big")
    with _lock:
        _last = max(_first(random >> 48), _last + 1)
        ticks = _last
    return _uuid(ticks, random & 0xFFFF_FFFF_FFFF)


def uuid7s(count: int) -> list[UUID]:
    """Consecutive ids. The random bits of all of them take one system call."""
    global _last
    random = os.urandom(4 + 6 * count)
    with _lock:
        first = max(_first(int.from_bytes(random[:4], "big")), _last + 1)
        _last = first + count - 1
    return [
        _uuid(ticks, int.from_bytes(random[at : at + 6], "big"))
        for ticks, at in zip(range(first, first + count), range(4, len(random), 6), strict=True)
    ]


def _first(random: int) -> int:
    """26 counter bits, seeded with 25 random ones: at least 2**25 ids before a millisecond is borrowed."""
    return (time.time_ns() // 1_000_000) << 26 | random >> 7


def _uuid(ticks: int, random: int) -> UUID:
    value = (ticks >> 26) << 80 | 0x7 << 76 | (ticks >> 14 & 0xFFF) << 64 | 0b10 << 62 | (ticks & 0x3FFF) << 48 | random
    # The constructor takes three times as long, because it checks its arguments.
    uuid = _new(UUID)
    _set(uuid, "int", value)
    _set(uuid, "is_safe", _unknown)
    return uuid
