"""What may be called what: the rules for names and keys, and their checks. Each check returns what is wrong, or None."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

IDENTIFIER_BYTES = 63
TYPE_BYTES = 200
KEY_BYTES = 512
WORKSPACE_BYTES = 255
CONTENT_CLASSES = ("public", "internal", "confidential", "restricted")

_WORD = re.compile(r"[a-z][a-z0-9_]*\Z")
_DOTTED = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\Z")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def unstorable(text: str) -> str | None:
    """Postgres stores neither NUL nor half of a surrogate pair in text."""
    found = _UNSTORABLE.search(text)
    if found is None:
        return None
    if found.group() == "\x00":
        return f"contains \\u0000 at position {found.start()}, which Postgres cannot store"
    return f"contains the lone surrogate \\u{ord(found.group()):04x} at position {found.start()}, which is not Unicode text"


def wrong_word(name: object) -> str | None:
    """A schema, a context, a channel class: one lower-case word that is also a safe identifier."""
    if not isinstance(name, str):
        return _not_text(name)
    if not _WORD.match(name):
        return f"{name!r} is not a lower-case word (a letter, then letters, digits or _)"
    return _too_long(name, IDENTIFIER_BYTES)


def wrong_dotted(name: object, limit: int) -> str | None:
    """An event type or a subscription: lower-case words joined by dots."""
    if not isinstance(name, str):
        return _not_text(name)
    if not _DOTTED.match(name):
        return f"{name!r} is not lower-case words joined by dots, like 'orders.placed'"
    return _too_long(name, limit)


def wrong_text(text: object, limit: int) -> str | None:
    """A key or another short text from outside: anything storable, not empty, not too long."""
    if not isinstance(text, str):
        return _not_text(text)
    if text == "":
        return "is empty: leave it out instead"
    return unstorable(text) or _too_long(text, limit)


def _not_text(value: object) -> str:
    return f"{value!r:.60} is {type(value).__name__}, not str"


def _too_long(text: str, limit: int) -> str | None:
    size = len(text.encode())
    return f"has {size} bytes, at most {limit} are allowed" if size > limit else None


def unknown_option(whose: str, given: Iterable[str], known: Iterable[str]) -> str | None:
    """Options that there are not, with those that there are."""
    there = sorted(known)
    unknown = sorted(set(given).difference(there))
    if not unknown:
        return None
    meant = list(dict.fromkeys(like for each in unknown for like in get_close_matches(each, there, 1)))
    asked = f": did you mean {' and '.join(meant)}?" if meant else ""
    return f"{whose} has no option {', '.join(unknown)}; it has {', '.join(there)}{asked}"
