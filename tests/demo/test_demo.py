"""The demo as it is run: piped, on a terminal, in a private folder; it ends well and leaves no process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.postgres.embedded.conftest import await_ended, place, processes_of

from outrider.demo import crew, main
from outrider.demo.main import WORKERS, keep_shop
from outrider.errors import OutriderError

__all__ = ["place"]

pytestmark = [pytest.mark.xdist_group("demo"), pytest.mark.verify]

COMMAND = [sys.executable, "-P", "-c", "from outrider.cli import main; main()", "demo"]
RIGHT = "Nothing was lost, doubled or out of order."
SHOWN = (
    b"rolled back but seen",
    b"killed worker",
    b"cut the listening session",
    b"next attempt in",
    b"now a dead letter",
    b"committed late",
    b"The dashboard: http://127.0.0.1:",
)
BROKEN_WORKER = """
from outrider.demo import shop, worker
shop.INVOICE = shop.INVOICE.replace("values (", "select ").replace("(total)s)", "(total)s") + {clause!r}
worker.main()
"""


@pytest.fixture
def private_folder() -> Iterator[Path]:
    """Where only we can go: for root, whose server runs as somebody else, the data then lives in another folder."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-test-")).resolve()
    try:
        yield folder
    finally:
        note = folder / ".outrider" / "pg" / "location"
        if note.exists():
            moved = Path(note.read_text().strip())
            assert not processes_of(moved)
            shutil.rmtree(moved)
        assert not processes_of(folder)
        shutil.rmtree(folder)


def run_piped(folder: Path, seconds: str = "5") -> str:
    command = [*COMMAND, "--seconds", seconds]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\x1b" not in done.stdout
    return done.stdout


def numbers(said: str, pattern: str) -> list[int]:
    found = re.search(pattern.replace("#", r"([\d,]+)"), said)
    assert found, said
    return [int(group.replace(",", "")) for group in found.groups()]


def test_piped(place: Path) -> None:
    said = run_piped(place)
    assert RIGHT in said
    assert f"data     {place}/.outrider/pg/data" in said
    assert "dbname=outrider_demo" in said
    assert not processes_of(place)
    orders, rolled_back = numbers(said, "# orders were committed, # more were rolled back")
    published, expected_events = numbers(said, "events published +# +#")
    [invoices], [receipts] = numbers(said, "\n  invoices +#"), numbers(said, "\n  receipts +#")
    dead, stolen = numbers(said, "dead letters +# +#")
    assert min(rolled_back, dead) >= 1
    assert orders == published == expected_events == invoices + dead
    assert (receipts, dead) == (invoices, stolen)
    assert min(numbers(said, "killed # workers and cut #")) >= 1
    assert numbers(said, "articles announced +# +#") == [41, 41]
    assert numbers(said, "announcements +# +#") == [2, 2]


def test_trouble_comes_however_short_the_day(private_folder: Path) -> None:
    said = run_piped(private_folder, "0.1")
    assert RIGHT in said
    assert min(numbers(said, "killed # workers and cut #")) >= 1


def test_on_a_terminal_until_ctrl_c(place: Path) -> None:
    terminal, inside = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(COMMAND, cwd=place, stdin=inside, stdout=inside, stderr=inside, env=environment) as process:
        os.close(inside)
        said, open_ = b"", True
        with contextlib.suppress(OSError):  # Linux says EIO when the other side is closed
            while piece := os.read(terminal, 65536):
                said += piece
                if open_ and all(each in said for each in SHOWN):
                    process.send_signal(signal.SIGINT)
                    open_ = False
        os.close(terminal)
    text = said.decode()
    assert process.returncode == 0, text
    assert RIGHT in text
    assert "Traceback" not in text


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended
        return "outrider.demo.worker" in process.cmdline()
    return False


def test_workers_die_with_the_demo(place: Path) -> None:
    with subprocess.Popen(COMMAND, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left: list[psutil.Process] = []
        while sum(map(is_worker, left)) < WORKERS:  # it kills some itself
            while " orders  " not in process.stdout.readline():
                pass
            left = processes_of(place)
        process.kill()
        for each in left:
            await_ended(each)
        _, errors = process.communicate()
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("clause", "fault"),
    [
        (" from generate_series(1, case when %(number)s %% 5 = 0 then 2 else 1 end)", "doubled"),
        pytest.param(" where %(number)s %% 5 > 0", "lost", marks=pytest.mark.long),
    ],
)
def test_a_broken_handler_is_found_out(
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clause: str,
    fault: str,
) -> None:
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, "-P", "-c", BROKEN_WORKER.format(clause=clause)))
    monkeypatch.setattr(main, "PATIENCE", 6.0)
    assert not asyncio.run(keep_shop(empty_database, 2, live=False))
    [found] = numbers(capsys.readouterr().out, f"WRONG: .*{fault} #")
    assert found >= 1


def test_a_worker_that_ends_by_itself_ends_the_demo(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(ExceptionGroup) as several:
        asyncio.run(keep_shop(empty_database, 60, live=False))
    assert several.group_contains(OutriderError, match="ended with code 3")
