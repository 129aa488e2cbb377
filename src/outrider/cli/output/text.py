"""What the database holds, on a terminal: no escape of a payload or an error reaches it, and times are told for people."""

from __future__ import annotations

from datetime import datetime, timedelta

import typer
from rich.console import Console
from rich.text import Text

from outrider.redaction import sanitise

SHORT = 300
UNREADABLE = "(too long to be read: it was stored before the log bounded its payloads)"


def say(text: str, style: str = "", *, indent: int = 0) -> None:
    """Lines as they are: nothing in them is markup, and none is wrapped. The text must be safe."""
    for line in text.split("\n"):
        Console().print(Text(" " * indent + line, style=style), soft_wrap=True)


def tell(text: str, *, error: bool = False) -> None:
    """One line, of which a part may come from anywhere."""
    typer.echo(one_line(text), err=error)


def safe(text: str) -> str:
    """With hidden characters made visible; only line breaks stay."""
    return sanitise(text.replace("\t", "    "), limit=16 * len(text) + 16)


def one_line(text: object) -> str:
    return safe(str(text)).replace("\n", "\\n")


def at(when: datetime) -> str:
    return when.astimezone().isoformat(" ", "milliseconds")


def roughly(span: timedelta) -> str:
    seconds = abs(span.total_seconds())
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"


def lines(*lines: object) -> Text:
    return Text(safe("\n".join(str(line) for line in lines if line)))


def short(text: str | None) -> str:
    """One line of it."""
    line = " ".join((text or "").split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}…"


def moment(when: object) -> str:
    """Here, whatever the server's zone. History is JSON: its times are texts."""
    try:
        found = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        found = when
    return found.astimezone().isoformat(" ", "seconds") if isinstance(found, datetime) else str(found)
