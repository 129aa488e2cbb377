"""What a failed attempt means: try later, bury, or nobody's fault. Handlers say it by what they raise.

The errors judged here are foreign code: whatever they do when they are looked at, a verdict comes out.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import dropwhile
from pathlib import Path
from typing import TypeGuard

from pydantic import ValidationError

from outrider.errors import ConfigError, TerminalError, Undecodable
from outrider.names import TYPE_BYTES
from outrider.redaction import CUT, MASKED_CHARACTERS, MESSAGE_BYTES, mask, sanitise
from outrider.retry import DEFAULT_RETRY_POLICY, Duration, Policy, option_duration, parse_duration

FRAMES, FRAMES_BYTES = 5, 4096
"""How much of a traceback a dead letter keeps."""
SHORTEST_SNOOZE = timedelta(milliseconds=100)
"""Snooze uses no attempt: without a least delay it could spin for ever."""
_UNSET = object()
_HERE = str(Path(__file__).parent)
_KEPT = "__outrider_frames__"
_CHAIN = 16
_INNER = 3
_DEPTH = 3
_SQLSTATE = re.compile(r"[0-9A-Z]{5}\Z")
_OURS = re.compile(r"(40001|40P01|55P03|57P0[12345]|25P0[34]|26000|42P05|08...|53...)\Z")
_LOST = {"OperationalError", "InterfaceError"}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# What a database or a driver adds to its message: rows, keys, statements and their parameters.
_DETAILS = re.compile(r"\n(?:DETAIL: |\[SQL: |\[parameters: ).*", re.S)
# From the first quote to the last, in any language: values may hold quotes. asyncpg does not always quote.
_QUOTED = re.compile(r"""(?<=argument \$)\d+: .*|["'«»„“”].*["'«»„“”]""", re.S)
_NAMED = (("table", "table_name"), ("column", "column_name"), ("constraint", "constraint_name"))


class Bury(TerminalError):
    """Raise Bury("why") to bury the event at once."""


class Retry(Exception):
    """Raise it to try again `after` a while (None = as the policy says). Uses an attempt, and the last one buries."""

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after = None if after is None else option_duration("after", after)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Snooze(Exception):
    """Raise it to roll back and come again after `for_`. Uses no attempt."""

    def __init__(self, for_: Duration, reason: str = "") -> None:
        super().__init__(for_, reason)
        self.for_ = option_duration("for_", for_)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Later:
    """Park it and try again after `delay`; `counted` = this uses an attempt."""

    delay: timedelta
    code: str
    message: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Dead:
    """Bury it."""

    code: str
    message: str
    terminal: bool = True
    """Because of what it is; else because its attempts are used up."""


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """Nobody's fault: try again, no attempt used."""

    code: str
    message: str


Verdict = Later | Dead | Infrastructure


def classify(error: BaseException, attempt: int, policy: Policy, chance: float, *, ours: bool) -> Verdict:
    """The verdict on attempt number `attempt` (1 = the first). `ours` = the error came from our own connection."""
    error = _only_one(error)
    kind, code, message = type(error), code_of(error), describe(error)
    delay: timedelta | None = None
    if issubclass(kind, Snooze):
        if (snoozed := _asked(error, "for_")) is not None:
            return Later(max(snoozed, SHORTEST_SNOOZE), code, message, counted=False)
    elif issubclass(kind, Retry):
        delay = _asked(error, "after")
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
        if ours and (_OURS.match(state) if state else _lost(error)):
            return Infrastructure(code, message)
        if issubclass(kind, TimeoutError):
            code = "timeout"
    return _by_policy(code, message, attempt, policy, chance, delay)


def code_of(error: BaseException) -> str:
    """The SQLSTATE if there is one, else the name of the class: payment_declined, or shop.payment_declined if nested."""
    if state := sqlstate(error):
        return state
    name = _read(type(error), "__qualname__")
    if type(name) is not str:
        return "error"
    words = (_snake(part) for part in name.rpartition("<locals>.")[2].split("."))
    return ".".join(word for word in words if word)[:TYPE_BYTES].rstrip("._") or "error"


def _only_one(error: BaseException) -> BaseException:
    """The one error of a group, as when one task of a TaskGroup failed."""
    for _ in range(_DEPTH):
        inner = _read(error, "exceptions") if issubclass(type(error), BaseExceptionGroup) else None
        if not isinstance(inner, tuple) or len(inner) != 1 or not issubclass(type(inner[0]), BaseException):
            break
        error = inner[0]
    return error


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error of any driver, also inside those of SQLAlchemy and Django."""
    return next((state for link in _chain(error) if (state := _own_sqlstate(link)) is not None), None)


def describe(error: BaseException) -> str:
    """`ClassName: message`, safe to store and to print, without passwords; a group also names its first errors.

    Of what a database says the values are left out, which are those of a payload.
    """
    return sanitise(mask(_described(error, _DEPTH)[: 2 * MESSAGE_BYTES]))


def last_frames(error: BaseException) -> str | None:
    """Where it was raised: the innermost frames below ours, masked, in at most 4 KiB. None where they would say nothing."""
    try:
        error = _only_one(error)
        if type(kept := _read(error, _KEPT)) is str:
            return sanitise(mask(kept), FRAMES_BYTES)
        if issubclass(type(error), Undecodable):
            return None
        frames = traceback.extract_tb(error.__traceback__, limit=-30)
        theirs = list(dropwhile(lambda frame: frame.filename.startswith(_HERE), frames)) or list(frames)
        text = sanitise(mask("".join(traceback.format_list(theirs[-FRAMES:]))), MASKED_CHARACTERS).encode()
        if len(text) <= FRAMES_BYTES:
            return text.decode() or None
        mark = f"{CUT}\n".encode()
        return (mark + text[len(mark) - FRAMES_BYTES :]).decode(errors="ignore")
    except BaseException:
        return None


def keep_frames(error: BaseException) -> None:
    """Put them on the error, which leaves its traceback behind when it goes to another process."""
    with suppress(BaseException):
        setattr(error, _KEPT, last_frames(error))


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


def _lost(error: BaseException) -> bool:
    """Drivers report a lost connection without a SQLSTATE, by these classes of the DB-API. psycopg makes a bare
    DatabaseError of what libpq itself says in place of a result, as when the wire breaks in a pipeline."""
    return any(_is_called(link, _LOST) or _name(type(link)) == "DatabaseError" for link in _chain(error))


def _is_called(error: BaseException, names: set[str]) -> bool:
    classes = _read(type(error), "__mro__")
    return type(classes) is tuple and any(_name(kind) in names for kind in classes)


def _own_sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state = _read(error, name)
        if type(state) is str and _SQLSTATE.match(state):
            return state
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what SQLAlchemy wrapped (`orig`) and what it was raised from, without running in circles."""
    ahead, seen = [error], set[int]()
    while ahead and len(seen) < _CHAIN:
        link = ahead.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        for name in ("orig", "__cause__"):
            wrapped = _read(link, name)
            if _is_error(wrapped):
                ahead.append(wrapped)


def _asked(error: BaseException, name: str) -> timedelta | None:
    """The wait that a handler asked for; None if a subclass never set it."""
    asked = _read(error, name)
    try:
        return parse_duration(asked) if type(asked) is timedelta else None
    except ConfigError:
        return None


def _described(error: BaseException, depth: int) -> str:
    if (speaker := _speaker(error)) is not None:
        return ": ".join([_name(type(error)), *([_described(speaker, depth - 1)] if depth else [])])
    described = ": ".join(part for part in (_name(type(error)), _message(error)) if part)
    inner = _read(error, "exceptions") if issubclass(type(error), BaseExceptionGroup) else None
    if type(inner) is not tuple or not depth:
        return described
    first = [_described(each, depth - 1) for each in inner[:_INNER] if issubclass(type(each), BaseException)]
    more = [f"and {len(inner) - _INNER} more"] if len(inner) > _INNER else []
    return f"{described}: [{'; '.join(first + more)}]"


def _speaker(error: BaseException) -> BaseException | None:
    """Whose words it repeats: SQLAlchemy, with the statement and its parameters, and Django repeat the driver's."""
    orig, cause = _read(error, "orig"), _read(error, "__cause__")
    if _is_error(orig) and all(_read(error, name, _UNSET) is not _UNSET for name in ("statement", "params")):
        return orig
    if _is_error(cause) and _own_sqlstate(cause) and _text(error) and _text(error) == _text(cause):
        return cause
    return None


def _message(error: BaseException) -> str:
    if issubclass(type(error), ValidationError):
        return _text(error)
    state, faulty = _own_sqlstate(error), _is_called(error, {"DataError"})
    if state is None and not faulty:
        return _DETAILS.sub("", _text(error))
    diagnosis = _read(error, "diag")
    primary = _read(diagnosis, "message_primary")
    said = _DETAILS.sub("", primary if type(primary) is str else _text(error))
    if faulty or (state or "").startswith("22"):
        said = _QUOTED.sub("…", said)
    told = [(word, _read(diagnosis, name) or _read(error, name)) for word, name in _NAMED]
    more = [f'{word} "{name}"' for word, name in told if type(name) is str and name and f'"{name}"' not in said]
    said = f"{said} ({', '.join(more)})" if more else said
    hint = _read(diagnosis, "message_hint")
    return f"{said}. {hint}" if state == "42501" and type(hint) is str and hint else said


def _text(error: BaseException) -> str:
    try:
        if issubclass(type(error), ValidationError):
            return _invalid(error)  # type: ignore[arg-type]
        return str.__str__(str(error))
    except BaseException as broken:
        return f"(its message cannot be read: {_name(type(broken))})"


def _invalid(error: ValidationError) -> str:
    """Its own words quote the values, which are those of a payload."""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)
    said = [f"{'.'.join(str(part) for part in each['loc']) or 'it'}: {each['msg']}" for each in wrong[:_INNER]]
    more = [f"and {len(wrong) - _INNER} more"] if len(wrong) > _INNER else []
    return f"{len(wrong)} validation error{'s' * (len(wrong) != 1)} for {error.title}: {'; '.join(said + more)}"


def _is_error(found: object) -> TypeGuard[BaseException]:
    # isinstance() would ask the object itself for its class.
    return issubclass(type(found), BaseException)


def _name(kind: object) -> str:
    name = _read(kind, "__name__")
    return name if type(name) is str and name else "Error"


def _read(subject: object, name: str, missing: object = None) -> object:
    # A property of a foreign error may raise anything, and a worker must outlive even SystemExit here.
    try:
        return getattr(subject, name, missing)
    except BaseException:
        return missing


def _snake(name: str) -> str:
    word = re.sub(r"[^a-z0-9]+", "_", _HUMP.sub("_", name).lower())
    return word.lstrip("_0123456789").rstrip("_")
