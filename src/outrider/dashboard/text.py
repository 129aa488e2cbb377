"""How values look on a page. `shown` is applied to everything that a template prints."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from outrider.postgres.admin.subscriptions import MOST
from outrider.redaction import mask, sanitise, without_literals

LONGEST = 64 * 1024
"""Bytes of a text that are shown."""
SHORT = 160
REFERENCE = Markup("&#{};")
_UNUSUAL = re.compile(r"[^\n\x20-\x7e]")


def shown(value: object) -> object:
    """Hidden, control and bidi characters become visible escapes, and long texts are cut. Jinja escapes the result."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return sanitise(value, LONGEST) if isinstance(value, str) else value


def exact_value(value: str) -> Markup:
    """For a field of a form, which must send back what it got. `shown` changes and cuts other texts."""
    return Markup("").join(_reference(each) for each in value)


def _reference(each: str) -> Markup | str:
    """References to U+0080 to U+009F mean other characters in HTML."""
    hidden = sanitise(each) != each and not "\x80" <= each <= "\x9f"
    return REFERENCE.format(ord(each)) if hidden else each


def editable(payload: str | None) -> str | None:
    """The JSON for a field of a form: hidden characters become escapes of JSON, so that it says the same.

    None: it is too long to be shown whole.
    """
    if not payload or len(payload) > LONGEST:
        return None
    text = _UNUSUAL.sub(_json_escape, payload)
    return text if len(text.encode()) <= LONGEST else None


def _json_escape(found: re.Match[str]) -> str:
    if sanitise(found[0]) == found[0]:
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def capped(value: int) -> str:
    """Counting ends at MOST."""
    return f"{value:,}+" if value >= MOST else f"{value:,}"


def short(text: str | None, most: int = SHORT) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= most else f"{line[:most]}…"


def span(length: timedelta | float | None) -> str:
    """The two largest units are not needed to judge a delay: one is."""
    if length is None:
        return "–"
    seconds = abs(length.total_seconds() if isinstance(length, timedelta) else length)
    if seconds < 1:
        return "<1 s"
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86400:,.0f} d"


def apart(length: timedelta) -> str:
    """How long after the first of several moments."""
    seconds = length.total_seconds()
    return f"{1000 * seconds:,.0f} ms" if seconds < 10 else span(length)


def exact(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def moment(when: object, now: datetime | None = None) -> Markup | str:
    """A time relative to now, with the exact one on hover. The script of the page keeps it current."""
    if not isinstance(found := _time_of(when), datetime):
        return found
    away = found - (now or datetime.now(UTC))
    told = f"in {span(away)}" if away > timedelta(seconds=1) else f"{span(away)} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(found.isoformat(), exact(found), told)


def due(when: datetime, now: datetime | None = None) -> Markup:
    """As `moment`, of something that is tried from then on."""
    away = when - (now or datetime.now(UTC))
    told = f"in {span(away)}" if away > timedelta(0) else "due now"
    return Markup('<time datetime="{}" title="{}" data-due>{}</time>').format(when.isoformat(), exact(when), told)


def age(since: object, now: datetime | None = None) -> Markup | str:
    """How long something has lasted, with its beginning on hover. The script of the page keeps it current."""
    if not isinstance(found := _time_of(since), datetime):
        return found
    told = span((now or datetime.now(UTC)) - found)
    return Markup('<time datetime="{}" title="since {}" data-age>{}</time>').format(
        found.isoformat(), exact(found), told
    )


def _time_of(when: object) -> datetime | str:
    if isinstance(when, str):
        try:
            return datetime.fromisoformat(when)
        except ValueError:
            return when
    if isinstance(when, datetime):
        return when
    return "–" if when is None else str(when)


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


FILTERS = {
    "number": number,
    "capped": capped,
    "short": short,
    "span": span,
    "moment": moment,
    "age": age,
    "due": due,
    "exact": exact,
    "apart": apart,
    "pretty": pretty,
    "editable": editable,
    "exact_value": exact_value,
    "mask": lambda text: mask(str(text)),
    "statement": lambda text: mask(without_literals(text)),
}
