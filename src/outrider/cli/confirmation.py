"""Asks before a command changes something for good."""

from __future__ import annotations

import sys

import typer

from outrider.cli.output.text import one_line
from outrider.errors import NotConfirmed


def confirm(question: str, otherwise: str, *, yes: bool) -> None:
    """`otherwise` says what was not done, like "nothing was replayed"."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(f"{otherwise}: there is no terminal to ask at; to do it, add --yes ({one_line(question)})")
    if not typer.confirm(one_line(question), err=True):
        raise NotConfirmed(otherwise)
