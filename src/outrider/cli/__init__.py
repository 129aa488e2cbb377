"""The command line: `outrider migrate`, `outrider dev`, `outrider demo`. One module per command."""

from __future__ import annotations

from outrider.cli.main import main

__all__ = ["main"]
