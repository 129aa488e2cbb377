"""Event ids: UUID version 7, time-ordered, strictly increasing within a process."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """48 bits of milliseconds, then 12 + 14 bits that count within a millisecond from a random start, then random.

    The counter occupies rand_a and the upper part of rand_b, so that ids made in a burst stay in order.
    """
    global _last
    random = int.from_bytes(os.urandom(10), "big")
    with _lock:
        # 26 counter bits, seeded with 25 random ones: at least 2**25 ids before a millisecond is borrowed.
        ticks = (time.time_ns() // 1_000_000) << 26
        _last = max(ticks | (random >> 55), _last + 1)
        ticks = _last
    counter = ticks & 0x3FF_FFFF
    value = (ticks >> 26) << 80 | 0x7 << 76 | (counter >> 14) << 64
    value |= 0b10 << 62 | (counter & 0x3FFF) << 48 | random & 0xFFFF_FFFF_FFFF
    return UUID(int=value)
