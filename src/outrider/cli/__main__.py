"""`python -m outrider.cli` is `outrider`."""

from __future__ import annotations

from outrider.cli import main

if __name__ == "__main__":
    main()
