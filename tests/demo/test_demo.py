"""The demo as it is run: piped, on a terminal, in a private folder; it ends well and leaves no process."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres.embedded.conftest import place, processes_of

__all__ = ["place"]

pytestmark = pytest.mark.xdist_group("demo")

COMMAND = [sys.executable, "-P", "-c", "from outrider.cli import main; main()", "demo"]


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


def run_piped(folder: Path) -> str:
    command = [*COMMAND, "--seconds", "3"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=80, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    return done.stdout


def test_piped(place: Path) -> None:
    said = run_piped(place)
    assert "Nothing lost, nothing doubled, nothing out of order." in said
    assert f"data     {place}/.outrider/pg/data" in said
    assert "dbname=outrider_demo" in said
    assert not processes_of(place)


def test_in_a_private_folder(private_folder: Path) -> None:
    assert "Nothing lost" in run_piped(private_folder)


def test_on_a_terminal_until_ctrl_c(place: Path) -> None:
    terminal, inside = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(COMMAND, cwd=place, stdin=inside, stdout=inside, stderr=inside, env=environment) as process:
        os.close(inside)
        said = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other side is closed
            while piece := os.read(terminal, 65536):
                said += piece
                if said.count(b"events read") == 3:
                    process.send_signal(signal.SIGINT)
        os.close(terminal)
    text = said.decode()
    assert process.returncode == 0, text
    assert "rolled back but seen" in text
    assert "Nothing lost, nothing doubled, nothing out of order." in text
    assert "Traceback" not in text
