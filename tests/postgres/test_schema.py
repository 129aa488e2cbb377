"""The migrated schema is what the snapshot says; a change to it, or to a function, is a deliberate one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from outrider.postgres import migrate
from outrider.postgres.embedded import Embedded

SNAPSHOT = Path(__file__).parent / "schema.sql"


def dumped(dsn: str) -> str:
    command = [str(Embedded().bin / "pg_dump"), "--schema-only", "--no-owner", "--schema=outrider", f"--dbname={dsn}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if not re.match(r"--|\\|SET |SELECT pg_catalog.set_config", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def test_schema_equals_the_snapshot(database: str) -> None:
    found = dumped(database)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), "the schema has changed: if on purpose, run make snapshot and review the diff"


def test_functions_changed_with_a_number() -> None:
    """Functions are only replaced together with a migration, so a changed one needs a new number."""
    newest = migrate.known()[-1]
    assert newest.functions == migrate.functions_fingerprint(), (
        f"a function has changed since migration {newest.version}: add a migration (it may hold nothing but its header) "
        f"with `-- functions: {migrate.functions_fingerprint()}`; if {newest.version} is not released yet, change its header"
    )


def test_migrations_are_numbered_without_gaps() -> None:
    assert [m.version for m in migrate.known()] == list(range(1, len(migrate.known()) + 1))
