"""`python takeover_killed.py N ARGUMENTS…`: `outrider ARGUMENTS…`, killed by SIGKILL at its point N.

A point is before each statement, and before and after the end of each transaction.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from psycopg import AsyncCursor, AsyncTransaction

from outrider.cli import main


def die_at(point: int) -> None:
    left = point

    def pass_point() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    execute, leave = AsyncCursor.execute, AsyncTransaction.__aexit__

    async def counted_execute(self: Any, *args: Any, **options: Any) -> Any:
        pass_point()
        return await execute(self, *args, **options)

    async def counted_leave(self: Any, *args: Any) -> Any:
        pass_point()
        left_well = await leave(self, *args)
        pass_point()
        return left_well

    setattr(AsyncCursor, "execute", counted_execute)  # noqa: B010 (mypy refuses an assignment)
    setattr(AsyncTransaction, "__aexit__", counted_leave)  # noqa: B010


if __name__ == "__main__":
    die_at(int(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    main()
