"""When a failed attempt is tried again, and when it is buried. Chance is passed in, so every answer is exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

from outrider.errors import ConfigError, DeclarationError

Duration = str | int | float | timedelta
LONGEST = timedelta(days=3650)

_TEXT = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)\Z")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Policy(Protocol):
    """How long to wait after a failure."""

    def delay(self, attempt: int, chance: float) -> timedelta | None:
        """The wait after `attempt` failed attempts (1 = the first try failed); None = bury. `chance` is in [0, 1)."""


def parse_duration(value: Duration) -> timedelta:
    """A timedelta from "250ms", "30s", "5m", "1h", "2d", a number of seconds or a timedelta; at most 3,650 days."""
    try:
        duration = _duration(value)
    except OverflowError:
        raise ConfigError("a duration is between zero and 3,650 days") from None
    if duration is None:
        raise ConfigError(
            f"{value!r:.60} is not a duration: write a whole number with its unit (250ms, 30s, 5m, 1h, 2d), "
            "a number of seconds or a timedelta"
        )
    if duration < timedelta(0):
        raise ConfigError(f"{value!r:.60} is negative: a duration is zero or more")
    if duration > LONGEST:
        raise ConfigError(f"{value!r:.60} is too long: a duration is at most 3,650 days")
    return duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits that grow by a factor up to a cap. Durations may be given as text; they are kept as timedelta."""

    retries: int = 5
    """How often to try again after the first attempt; 0 = bury at the first failure."""
    base: Duration = timedelta(seconds=1)
    """The wait before the first retry."""
    factor: float = 2.0
    """What each wait is multiplied with to get the next one, at least 1."""
    cap: Duration = timedelta(minutes=5)
    """The longest wait."""
    jitter: Literal["full", "none"] = "full"
    """full: anything between zero and the wait, so that what failed together does not come back together."""

    def __post_init__(self) -> None:
        if type(self.retries) is not int or not 0 <= self.retries < 2**31 - 1:
            raise ConfigError(f"retries: {self.retries!r} is not a whole number between 0 and 2**31 - 2")
        if type(self.factor) not in (int, float) or not 1 <= self.factor <= 1000:
            raise ConfigError(f"factor: {self.factor!r} is not a number between 1 and 1,000")
        if self.jitter not in ("full", "none"):
            raise ConfigError(f"jitter: {self.jitter!r} is neither 'full' nor 'none'")
        base, cap = option_duration("base", self.base), option_duration("cap", self.cap)
        if cap < base:
            raise ConfigError(f"cap: {cap} is shorter than base, {base}")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "cap", cap)

    def delay(self, attempt: int, chance: float) -> timedelta | None:
        if _failed(attempt) > self.retries:
            return None
        wait = self._wait(attempt)
        return wait * chance if self.jitter == "full" else wait

    def _wait(self, attempt: int) -> timedelta:
        base, cap = parse_duration(self.base), parse_duration(self.cap)
        if not base:
            return base
        try:
            return min(cap, base * float(self.factor) ** (attempt - 1))
        except OverflowError:
            return cap


@dataclass(frozen=True, slots=True)
class Backoff:
    """A table of waits, without jitter. The failure after the last of them buries."""

    delays: tuple[Duration, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.delays, tuple):
            raise ConfigError(f'delays: {self.delays!r:.60} is not a tuple: write Backoff.table("30s", "5m")')
        parsed = tuple(option_duration(f"delays[{n}]", delay) for n, delay in enumerate(self.delays))
        object.__setattr__(self, "delays", parsed)

    @classmethod
    def table(cls, *delays: Duration) -> Backoff:
        """Backoff.table("30s", "5m"): wait 30 s before attempt 2 and 5 min before attempt 3; the third failure buries."""
        return cls(delays)

    def delay(self, attempt: int, chance: float) -> timedelta | None:  # noqa: ARG002
        return parse_duration(self.delays[attempt - 1]) if _failed(attempt) <= len(self.delays) else None


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stops a handler for a while when everything fails, instead of using up the attempts of one event after the other.

    After `failures` in a row, counted for each partition, nothing is taken for `probe`. Then one event is tried: when it
    succeeds, all goes on; when it fails, without using an attempt, the next is tried after twice that time, at most after
    `longest`.
    """

    failures: int = 10
    probe: Duration = "10s"
    longest: Duration = "5m"

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= 1_000_000:
            raise ConfigError(f"failures: {self.failures!r} is not a whole number between 1 and 1,000,000")
        probe, longest = option_duration("probe", self.probe), option_duration("longest", self.longest)
        if not probe:
            raise ConfigError("probe: zero would be no pause at all")
        if longest < probe:
            raise ConfigError(f"longest: {longest} is shorter than probe, {probe}")
        object.__setattr__(self, "probe", probe)
        object.__setattr__(self, "longest", longest)


def _duration(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timedelta(seconds=value) if value == value else None
    if isinstance(value, str) and (found := _TEXT.match(value)):
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    return None


def option_duration(option: str, value: Duration, whose: str | None = None) -> timedelta:
    """The duration that an option has; if it is none, the error names the option, and whose it is."""
    try:
        return parse_duration(value)
    except ConfigError as wrong:
        if whose is not None:
            raise DeclarationError(f"{whose}: {option}: {wrong}") from None
        raise ConfigError(f"{option}: {wrong}") from None


def _failed(attempt: int) -> int:
    if attempt < 1:
        raise ValueError(f"attempt is {attempt}: attempts count from 1")
    return attempt


DEFAULT_RETRY_POLICY = RetryPolicy()

PATIENT_RETRY_POLICY = RetryPolicy(retries=56, base="10s", cap="1h")
"""For outages of hours: 56 retries over 24 hours on average, in nearly all cases 16 to 32, and never over 49. The
waits reach an hour after about 45 minutes, and what waits is tried within an hour of the end of the outage."""
