"""Text for a terminal: no escape sequence of a payload or an error reaches it, and times are in the local zone."""

from __future__ import annotations

import json
from collections.abc import Container
from datetime import datetime, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.redaction import sanitise

SHORT = 300
"""Characters of an error that are shown in a list."""
UNREADABLE = "(too long to be read: it was stored before the log bounded its payloads)"


def say(text: str, style: str = "", *, indent: int = 0) -> None:
    """Prints lines as they are: nothing in them is markup, and none is wrapped. The text must be safe."""
    for line in text.split("\n"):
        Console().print(Text(" " * indent + line, style=style), soft_wrap=True)


def tell(text: str, *, error: bool = False) -> None:
    """Prints one line that may contain text from anywhere."""
    typer.echo(one_line(text), err=error)


def print_json(**answer: Any) -> None:
    typer.echo(json.dumps(answer, default=str, indent=2))


def make_table(*columns: str, title: str | None = None, unbroken: Container[str] = ()) -> Table:
    """Columns wrap, except those that are `unbroken`."""
    made = Table(title=title, padding=(0, 0), pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column in unbroken)
    return made


def safe(text: str) -> str:
    """Makes hidden characters visible; only line breaks stay."""
    return sanitise(text.replace("\t", "    "), limit=16 * len(text) + 16)


def one_line(text: object) -> str:
    return safe(str(text)).replace("\n", "\\n")


def lines(*lines: object) -> Text:
    return Text(safe("\n".join(str(line) for line in lines if line)))


def short(text: str | None) -> str:
    """The first characters, on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}…"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def capped(number: int, most: int) -> str:
    """Counting ended at `most`."""
    return f"{number:,}+" if number >= most else f"{number:,}"


def at(when: datetime) -> str:
    return when.astimezone().isoformat(" ", "milliseconds")


def moment(when: object) -> str:
    """In the local zone. The times of a history are texts of JSON."""
    try:
        found = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        found = when
    return found.astimezone().isoformat(" ", "seconds") if isinstance(found, datetime) else str(found)


def roughly(span: timedelta) -> str:
    seconds = abs(span.total_seconds())
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"
