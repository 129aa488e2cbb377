"""`outrider dev` keeps the project's Postgres up until it is told to stop, and leaves nothing running."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import psycopg
import pytest
from tests.cli.conftest import Run, Start
from tests.postgres.embedded.conftest import place

__all__ = ["place"]


@pytest.mark.verify
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_dev_runs_until_a_signal(start: Start, outrider: Run, place: Path, ending: signal.Signals) -> None:
    process = start("dev", cwd=place)
    assert process.stdout is not None
    said = ""
    while "Running until" not in said:
        line = process.stdout.readline()
        assert line, f"it ended early: {said}"
        said += line
    [export] = [line for line in said.splitlines() if "export OUTRIDER_DSN=" in line]
    dsn = shlex.split(export)[1].removeprefix("OUTRIDER_DSN=")
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select count(*) from outrider.outbox").fetchone() == (0,)
        assert conn.info.dbname == "outrider"
    assert "psql" in said
    assert "up to date" in outrider("migrate", "--embedded", cwd=place).stdout
    process.send_signal(ending)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "Stopping.\n", "")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
