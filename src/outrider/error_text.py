"""Reads errors that foreign code has raised: their code, their text, where they were raised.

Such an error may do anything when it is looked at, even raise SystemExit. Every function here returns all the same.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import TypeGuard

from pydantic import ValidationError

from outrider.errors import Undecodable
from outrider.names import TYPE_BYTES
from outrider.redaction import CUT, MASKED_CHARACTERS, MESSAGE_BYTES, mask, sanitise

FRAMES, FRAMES_BYTES = 5, 4096
"""The most frames and bytes of a traceback that a dead letter keeps."""

_UNSET = object()
_HERE = str(Path(__file__).parent)
_KEPT = "__outrider_frames__"
_CHAIN = 16
"""The most errors of a chain of causes that are looked at."""
_INNER = 3
"""The most errors of a group, or of a validation, that are named."""
_DEPTH = 3
"""How deep groups of groups are looked into."""
_SQLSTATE = re.compile(r"[0-9A-Z]{5}\Z")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# What a database or a driver adds to its message: rows, keys, statements and their parameters.
_DETAILS = re.compile(r"\n(?:DETAIL: |\[SQL: |\[parameters: ).*", re.S)
# From the first quote to the last, in any language: values may hold quotes. asyncpg does not always quote.
_QUOTED = re.compile(r"""(?<=argument \$)\d+: .*|["'«»„“”].*["'«»„“”]""", re.S)
_NAMED = (("table", "table_name"), ("column", "column_name"), ("constraint", "constraint_name"))


def code_of(error: BaseException) -> str:
    """The SQLSTATE if there is one, else the name of the class: payment_declined, or shop.payment_declined if nested."""
    if state := sqlstate(error):
        return state
    name = read_attribute(type(error), "__qualname__")
    if type(name) is not str:
        return "error"
    words = (_snake(part) for part in name.rpartition("<locals>.")[2].split("."))
    return ".".join(word for word in words if word)[:TYPE_BYTES].rstrip("._") or "error"


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error of any driver, also inside those of SQLAlchemy and Django."""
    return next((state for link in chain(error) if (state := _own_sqlstate(link)) is not None), None)


def describe(error: BaseException) -> str:
    """`ClassName: message`, safe to store and to print, without passwords; a group also names its first errors.

    Values in messages of a database are left out: they may come from a payload.
    """
    return sanitise(mask(_described(error, _DEPTH)[: 2 * MESSAGE_BYTES]))


def last_frames(error: BaseException) -> str | None:
    """Where it was raised: the innermost frames below those of Outrider, masked, at most 4 KiB. None: they say nothing."""
    try:
        error = only_error(error)
        if type(kept := read_attribute(error, _KEPT)) is str:
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
    """Store `last_frames` on the error, because its traceback does not travel to another process."""
    with suppress(BaseException):
        setattr(error, _KEPT, last_frames(error))


def only_error(error: BaseException) -> BaseException:
    """The one error of a group, as when one task of a TaskGroup failed."""
    for _ in range(_DEPTH):
        inner = read_attribute(error, "exceptions") if issubclass(type(error), BaseExceptionGroup) else None
        if not isinstance(inner, tuple) or len(inner) != 1 or not issubclass(type(inner[0]), BaseException):
            break
        error = inner[0]
    return error


def is_called(error: BaseException, names: set[str]) -> bool:
    classes = read_attribute(type(error), "__mro__")
    return type(classes) is tuple and any(class_name(kind) in names for kind in classes)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, the one that SQLAlchemy wrapped (`orig`) and the ones it was raised from. A cycle ends."""
    ahead, seen = [error], set[int]()
    while ahead and len(seen) < _CHAIN:
        link = ahead.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        for name in ("orig", "__cause__"):
            wrapped = read_attribute(link, name)
            if _is_error(wrapped):
                ahead.append(wrapped)


def _own_sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state = read_attribute(error, name)
        if type(state) is str and _SQLSTATE.match(state):
            return state
    return None


def _described(error: BaseException, depth: int) -> str:
    if (quoted := _quoted_error(error)) is not None:
        return ": ".join([class_name(type(error)), *([_described(quoted, depth - 1)] if depth else [])])
    described = ": ".join(part for part in (class_name(type(error)), _message(error)) if part)
    inner = read_attribute(error, "exceptions") if issubclass(type(error), BaseExceptionGroup) else None
    if type(inner) is not tuple or not depth:
        return described
    first = [_described(each, depth - 1) for each in inner[:_INNER] if issubclass(type(each), BaseException)]
    more = [f"and {len(inner) - _INNER} more"] if len(inner) > _INNER else []
    return f"{described}: [{'; '.join(first + more)}]"


def _quoted_error(error: BaseException) -> BaseException | None:
    """The error of the driver whose message this one repeats: SQLAlchemy and Django do, SQLAlchemy also with parameters."""
    orig, cause = read_attribute(error, "orig"), read_attribute(error, "__cause__")
    if _is_error(orig) and all(read_attribute(error, name, _UNSET) is not _UNSET for name in ("statement", "params")):
        return orig
    if _is_error(cause) and _own_sqlstate(cause) and _text(error) and _text(error) == _text(cause):
        return cause
    return None


def _message(error: BaseException) -> str:
    if issubclass(type(error), ValidationError):
        return _text(error)
    state, faulty = _own_sqlstate(error), is_called(error, {"DataError"})
    if state is None and not faulty:
        return _DETAILS.sub("", _text(error))
    diagnosis = read_attribute(error, "diag")
    primary = read_attribute(diagnosis, "message_primary")
    text = _DETAILS.sub("", primary if type(primary) is str else _text(error))
    if faulty or (state or "").startswith("22"):
        text = _QUOTED.sub("…", text)
    names = [(word, read_attribute(diagnosis, name) or read_attribute(error, name)) for word, name in _NAMED]
    more = [f'{word} "{name}"' for word, name in names if type(name) is str and name and f'"{name}"' not in text]
    text = f"{text} ({', '.join(more)})" if more else text
    hint = read_attribute(diagnosis, "message_hint")
    return f"{text}. {hint}" if state == "42501" and type(hint) is str and hint else text


def _text(error: BaseException) -> str:
    try:
        if issubclass(type(error), ValidationError):
            return _invalid(error)  # type: ignore[arg-type]
        return str.__str__(str(error))
    except BaseException as broken:
        return f"(its message cannot be read: {class_name(type(broken))})"


def _invalid(error: ValidationError) -> str:
    """Its own text quotes the values, which may come from a payload."""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)
    text = [f"{'.'.join(str(part) for part in each['loc']) or 'it'}: {each['msg']}" for each in wrong[:_INNER]]
    more = [f"and {len(wrong) - _INNER} more"] if len(wrong) > _INNER else []
    return f"{len(wrong)} validation error{'s' * (len(wrong) != 1)} for {error.title}: {'; '.join(text + more)}"


def _is_error(found: object) -> TypeGuard[BaseException]:
    # isinstance() would ask the object itself for its class.
    return issubclass(type(found), BaseException)


def class_name(kind: object) -> str:
    name = read_attribute(kind, "__name__")
    return name if type(name) is str and name else "Error"


def read_attribute(subject: object, name: str, missing: object = None) -> object:
    # A property of a foreign error may raise anything, and a worker must survive even SystemExit here.
    try:
        return getattr(subject, name, missing)
    except BaseException:
        return missing


def _snake(name: str) -> str:
    word = re.sub(r"[^a-z0-9]+", "_", _HUMP.sub("_", name).lower())
    return word.lstrip("_0123456789").rstrip("_")
