"""The options `--by` and `--reason` of commands that the audit records."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import Annotated

import typer

from outrider.cli.options import OptionGroup
from outrider.postgres.admin.audit import Signed


@dataclass(frozen=True)
class AuditOptions(OptionGroup):
    panel = "For the audit"

    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why you do it.")] = None
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who you are. Default: your login name.")] = (
        None
    )

    @property
    def who(self) -> str:
        return who(self.by)

    @property
    def signed(self) -> Signed:
        return Signed(self.who, self.reason)


def who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"
