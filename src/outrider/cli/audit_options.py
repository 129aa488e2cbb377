"""Who gives a command that is kept for the record."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

from outrider.postgres.admin.audit import Signed

ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who you are, for the record. Else the login name.")
]
ReasonOption = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the audit.")]


def signed(by: str | None, reason: str | None) -> Signed:
    return Signed(who(by), reason)


def who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"
