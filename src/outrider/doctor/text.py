"""Numbers and spans as a doctor says them."""

from __future__ import annotations

from datetime import timedelta


def counted(number: int, noun: str, most: int | None = None) -> str:
    """`most`: where counting ended."""
    more = " or more" * (most is not None and number >= most)
    return f"{number:,}{more} {noun}" + "s" * (number != 1)


def seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def span(of: timedelta) -> str:
    seconds = of.total_seconds()
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86_400:.0f} days"
