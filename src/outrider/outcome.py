"""What a failed attempt means: retry, dead letter, or an infrastructure failure. Handlers decide it by what they raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from pydantic import ValidationError

from outrider.error_text import chain, class_name, code_of, describe, is_called, only_error, read_attribute, sqlstate
from outrider.errors import ConfigError, TerminalError, Undecodable
from outrider.redaction import sanitise
from outrider.retry import DEFAULT_RETRY_POLICY, Duration, Policy, option_duration, parse_duration

SHORTEST_SNOOZE = timedelta(milliseconds=100)
"""The shortest delay of a Snooze, which uses no attempt: with none at all it could spin for ever."""
_INFRASTRUCTURE = re.compile(r"(40001|40P01|55P03|57P0[12345]|25P0[34]|26000|42P05|08...|53...)\Z")
"""SQLSTATEs of conflicts, lost sessions, poolers that mix up statements, and a server without resources."""
_LOST_CONNECTION = {"OperationalError", "InterfaceError"}


class Bury(TerminalError):
    """Raise Bury("why") to make a dead letter of the event or job at once."""


class Retry(Exception):
    """Raise it to try again `after` a delay (None = the delay of the retry policy). Uses an attempt; after the last one the
    event or job becomes a dead letter."""

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after = None if after is None else option_duration("after", after)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Snooze(Exception):
    """Raise it to roll back and try again after `for_`. Uses no attempt."""

    def __init__(self, for_: Duration, reason: str = "") -> None:
        super().__init__(for_, reason)
        self.for_ = option_duration("for_", for_)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Later:
    """Try again after `delay`. `counted`: this uses an attempt."""

    delay: timedelta
    code: str
    message: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Dead:
    """Make a dead letter of it."""

    code: str
    message: str
    terminal: bool = True
    """True: trying again cannot help. False: its attempts are used up."""


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """An infrastructure failure, such as a lost connection or a deadlock: try again, no attempt is used."""

    code: str
    message: str


Verdict = Later | Dead | Infrastructure


Classifier = Callable[[BaseException], BaseException | None]
"""Returns what an error counts as: Bury(...), Retry(...), Snooze(...) or another exception; None = as it is."""


def classify(
    error: BaseException,
    attempt: int,
    policy: Policy,
    chance: float,
    *,
    ours: bool,
    classifier: Classifier | None = None,
) -> Verdict:
    """The verdict on attempt number `attempt` (1 = the first). `ours`: the error came from the worker's own connection.
    The classifier is not asked about infrastructure failures: nothing that it could say would help."""
    verdict = _classify(error, attempt, policy, chance, ours=ours)
    if classifier is None or isinstance(verdict, Infrastructure):
        return verdict
    try:
        instead = classifier(only_error(error))
        if instead is not None and not isinstance(instead, BaseException):
            raise TypeError(f"it returned {instead!r:.60}, not an exception or None")
    except BaseException as broken:
        why = sanitise(describe(broken), 200)
        return replace(verdict, message=sanitise(f"The function classify= failed ({why}). {verdict.message}"))
    return verdict if instead is None else _classify(instead, attempt, policy, chance, ours=False)


def _classify(error: BaseException, attempt: int, policy: Policy, chance: float, *, ours: bool) -> Verdict:
    error = only_error(error)
    kind, code, message = type(error), code_of(error), describe(error)
    delay: timedelta | None = None
    if issubclass(kind, Snooze):
        if (snoozed := _requested(error, "for_")) is not None:
            return Later(max(snoozed, SHORTEST_SNOOZE), code, message, counted=False)
    elif issubclass(kind, Retry):
        delay = _requested(error, "after")
    elif issubclass(kind, TerminalError):
        return Dead(code, message)
    elif issubclass(kind, Undecodable):
        return Dead("undecodable", message)
    elif issubclass(kind, ValidationError):
        return Dead("invalid", message)
    else:
        state = sqlstate(error)
        if state is not None and state.startswith("23"):
            return Dead(code, message)
        if ours and (_INFRASTRUCTURE.match(state) if state else _connection_lost(error)):
            return Infrastructure(code, message)
        if issubclass(kind, TimeoutError):
            code = "timeout"
    return _by_policy(code, message, attempt, policy, chance, delay)


def _by_policy(
    code: str, message: str, attempt: int, policy: Policy, chance: float, instead: timedelta | None
) -> Later | Dead:
    try:
        delay = policy.delay(attempt, chance)
        delay = None if delay is None else parse_duration(delay)
    except BaseException as broken:
        why = sanitise(describe(broken), 200)
        message = sanitise(f"The retry policy failed ({why}), the default one was used. {message}")
        delay = DEFAULT_RETRY_POLICY.delay(max(attempt, 1), 1.0)
    if delay is None:
        return Dead(code, message, terminal=False)
    return Later(delay if instead is None else instead, code, message, counted=True)


def _connection_lost(error: BaseException) -> bool:
    """Drivers report a lost connection without a SQLSTATE, by these classes of the DB-API. psycopg raises a bare
    DatabaseError for an error of libpq itself, as when the connection breaks in a pipeline."""
    return any(is_called(link, _LOST_CONNECTION) or class_name(type(link)) == "DatabaseError" for link in chain(error))


def _requested(error: BaseException, name: str) -> timedelta | None:
    """The delay that a handler has asked for. None: a subclass never set it."""
    requested = read_attribute(error, name)
    try:
        return parse_duration(requested) if type(requested) is timedelta else None
    except ConfigError:
        return None
