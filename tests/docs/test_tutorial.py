"""docs/tutorial.md, followed from top to bottom: its files, its commands, and what they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres.embedded.conftest import await_ended, place, processes_of
from tests.processes import clean, processes

__all__ = ["place"]

pytestmark = pytest.mark.verify

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BIN = Path(sys.executable).parent
FILE = re.compile(r'^```py title="(.*?)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


def follow(place: Path, programs: Path, replay: Callable[[str], None] | None = None) -> dict[str, float]:
    """The seconds at which the first event was handled and the failed one replayed.

    `replay` gets the dashboard's address; without it the command of the page replays.
    """
    page, began = PAGE.read_text(), time.monotonic()
    for name, text in FILE.findall(page):
        (place / name).write_text(text)
    env = clean() | {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]]), "OUTRIDER_APP": "shop:app"}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        assert f"$ {command}\n" in page, f"the page does not say {command!r}"
        return subprocess.run(command, shell=True, cwd=place, env=env, capture_output=True, text=True, timeout=200)

    with processes() as begin:
        dev = begin([str(programs / "outrider"), "dev", "shop:app", "--port", "0"], place, env)
        assert dev.stdout is not None

        def until(text: str) -> str:
            said = []
            for line in dev.stdout or ():
                said.append(line)
                if text in line:
                    return line
            raise AssertionError(f"{text!r} was not said: {said} {dev.communicate()}")

        address = until("dashboard | http://").split()[-1]
        assert run("python order.py 990 1250").stdout == "ordered for 990 cents\nordered for 1250 cents\n"
        until("worker    | invoice over 990 cents")
        handled = time.monotonic() - began
        until("worker    | invoice over 1250 cents")
        assert "ValueError" in run("python order.py 500 oops").stderr
        assert run("python order.py -1").returncode == 0
        until("event=buried")
        assert "shop.invoice" in run("outrider dlq list").stdout
        shop = place / "shop.py"
        [repair] = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        shop.write_text(shop.read_text().replace("    await ctx.tx", f"{repair}    await ctx.tx"))
        until("dev       | changed: shop.py")
        until("event=listener_up")
        if replay is None:
            done = run('outrider dlq replay --all --yes --reason "the handler allows it now"')
            assert done.returncode == 0, done.stderr
        else:
            replay(address)
        until("worker    | no invoice over -1 cents")
        replayed = time.monotonic() - began
        assert "no dead letters" in run("outrider dlq list").stdout
        dev.send_signal(signal.SIGINT)
        until("dev       | stopped")
        for each in processes_of(place):  # Postgres
            await_ended(each)
    return {"handled": handled, "replayed": replayed}


def test_the_tutorial_works(place: Path) -> None:
    follow(place, BIN)
    known = {"python order.py 990 1250", "python order.py 500 oops", "python order.py -1", "outrider dlq list"}
    assert set(COMMAND.findall(PAGE.read_text())) - known == {
        ". .venv/bin/activate",
        "export OUTRIDER_APP=shop:app",
        'outrider dlq replay --all --yes --reason "the handler allows it now"',
    }
