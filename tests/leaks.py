"""What tests may leave behind: nothing."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import psycopg

HELD = """
select 'session', format('%s in %s: %s', pid, datname, query) from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
union all select 'prepared transaction', gid from pg_prepared_xacts
union all select 'advisory lock', objid::text from pg_locks where locktype = 'advisory'
union all select 'database', datname from pg_database
          where datname not in ('postgres', 'template0', 'template1', 'outrider_whole', 'outrider_template')
"""


def in_server(dsn: str) -> list[str]:
    """A closed session's backend is gone a moment later: look until it is, or until it clearly stays."""
    deadline = time.monotonic() + 3
    with psycopg.connect(dsn, autocommit=True) as conn:
        while found := conn.execute(HELD.replace("%", "%%"), []).fetchall():
            if time.monotonic() > deadline:
                break
    return [f"{kind} {name}" for kind, name in found]


def on_machine(folder: Path) -> list[str]:
    """Servers, detached or not, whose home is below `folder`, and those homes themselves."""
    found = [
        f"process {process.pid}: {' '.join(process.info['cmdline'])[:200]}"
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and str(folder) in " ".join(process.info["cmdline"])
    ]
    return found + [f"folder {home}" for home in folder.glob("outrider-*")]


def children() -> list[str]:
    return [
        f"process {child.pid}: {' '.join(child.cmdline())[:200]}" for child in psutil.Process().children(recursive=True)
    ]
