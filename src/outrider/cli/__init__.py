"""The command line: `outrider migrate`, `outrider worker`, `outrider demo` and so on. One module per command."""

from __future__ import annotations

from outrider.cli.main import main

__all__ = ["main"]
