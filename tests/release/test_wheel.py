"""The wheel in an environment of its own, without the repository: the tutorial, the README's program, a user's tests.

It takes about a minute: the tutorial installs the wheel, and the demo runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from tests.dashboard.test_browser import CHROMIUM, FLAGS
from tests.docs.test_tutorial import COMMAND, PAGE, follow
from tests.postgres.embedded.conftest import place
from tests.processes import clean
from tests.release.building import ROOT, build, loaded

pytestmark = [pytest.mark.verify, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(240)]

__all__ = ["place"]

INSTALL = ["python3 -m venv .venv && . .venv/bin/activate", "pip install 'outrider[embedded,dashboard]'"]
"""The first commands of the tutorial."""


class Environment:
    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.seconds = 0.0
        """What it took to make it."""

    def run(self, *command: str, cwd: Path) -> str:
        environment = clean() | {"PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONNOUSERSITE": "1"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """By the tutorial's commands, and pytest as a user has it. Pip finds the wheel, and chooses the versions of the pins."""
    folder = tmp_path_factory.mktemp("wheel")
    [wheel] = build(ROOT, folder / "dist", "wheel")
    pins = loaded("sbom").requirements(frozenset({"embedded", "dashboard"}), "pytest", "pytest-asyncio")
    chosen = folder / "constraints.txt"
    chosen.write_text(re.sub(r" --hash=\S+", "", f"{pins}\noutrider=={wheel.split('-')[1]}\n"))
    made = Environment(folder / ".venv")
    began = time.monotonic()
    for line in INSTALL:
        environment = clean() | {"PIP_CONSTRAINT": str(chosen), "PIP_FIND_LINKS": str(folder / "dist")}
        environment |= {"PATH": os.pathsep.join([str(made.bin), str(Path(sys.executable).parent), os.environ["PATH"]])}
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    made.seconds = time.monotonic() - began
    pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(chosen))
    made.run(*pip, "pytest", "pytest-asyncio", cwd=folder)
    [record] = made.bin.parent.glob("lib/*/site-packages/outrider-*.dist-info/RECORD")
    with zipfile.ZipFile(folder / "dist" / wheel) as ours:
        built = ours.read(f"{record.parent.name}/RECORD").decode().splitlines()
    assert {*built} <= {*record.read_text().splitlines()}, "pip took another outrider than ours"
    return made


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_everything_that_it_requires_is_there(installed: Environment, tmp_path: Path) -> None:
    assert installed.run("python", "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"
    where = installed.run("python", "-c", "import outrider; print(outrider.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.bin.parent))


def test_the_tutorial(installed: Environment, place: Path) -> None:
    """From an empty folder to a failed event that is replayed in the dashboard. Prints how long it takes."""

    def replay(address: str) -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()
            page.goto(address)
            page.get_by_role("link", name="Dead letters").first.click()
            page.get_by_role("link", name="Replay").first.click()
            page.get_by_label("Why").fill("the handler allows it now")
            page.get_by_role("button", name="Replay 1").click()
            page.locator("#done").wait_for()
            browser.close()

    took = follow(place, installed.bin, replay)
    commands = "".join(blocks("docs/tutorial.md", "sh")).splitlines()
    assert commands[: len(INSTALL)] == INSTALL
    typed = [line for line in COMMAND.findall(PAGE.read_text()) if "dlq replay" not in line]
    first = len(commands) + 1 + typed.index("python order.py 990 1250")
    print(
        f"{first} commands and {installed.seconds + took['handled']:.0f} s to the first handled event, "
        f"{installed.seconds:.0f} s of them for pip; {len(commands) + len(typed)} commands and "
        f"{installed.seconds + took['replayed']:.0f} s until a failed one is replayed"
    )
    assert first <= 5
    assert installed.seconds + took["replayed"] < 200


def test_the_command_to_install_is_the_same_everywhere() -> None:
    for page in ("README.md", "docs/install.md", "docs/index.md", "docs/tutorial.md"):
        found = re.search(r"^pip install .*?'(?=\s)", (ROOT / page).read_text(), re.MULTILINE)
        assert found is not None
        assert found[0] == INSTALL[1]


def test_the_demo(installed: Environment, place: Path) -> None:
    assert "Nothing was lost, doubled or out of order." in installed.run(
        "outrider", "demo", "--seconds", "3", cwd=place
    )


def test_the_program_of_the_front_page(installed: Environment, place: Path) -> None:
    """It publishes and handles; then the commands that the page names look at it."""
    (place / "shop.py").write_text("\n".join(blocks("README.md", "python")))
    assert installed.run("python", "shop.py", cwd=place).startswith("1 handled, 0 to retry")
    assert "shop.invoice" in installed.run("outrider", "status", "--app", "shop:app", cwd=place)


def test_the_tests_of_a_user(installed: Environment, place: Path) -> None:
    conftest, shop, tests = blocks("docs/testing.md", "py")
    (place / "conftest.py").write_text(conftest)
    (place / "shop.py").write_text(shop)
    (place / "test_shop.py").write_text(tests)
    (place / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    assert "2 passed" in installed.run("python", "-m", "pytest", "-q", cwd=place)
