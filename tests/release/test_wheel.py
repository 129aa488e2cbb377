"""The wheel in an environment of its own, with nothing of the repository: commands, the README's program, a user's tests.

It takes about half a minute: an environment is made, and the demo runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres.embedded.conftest import place
from tests.processes import clean
from tests.release.building import ROOT, build, loaded

pytestmark = [pytest.mark.verify, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(240)]

__all__ = ["place"]


class Environment:
    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"

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
    """The wheel with the extra `embedded`, and pytest as a user has it; versions and hashes are those of the pins."""
    folder = tmp_path_factory.mktemp("wheel")
    [wheel] = build(ROOT, folder / "dist", "wheel")
    pins = folder / "pins.txt"
    pins.write_text(loaded("sbom").requirements(frozenset({"embedded"}), "pytest", "pytest-asyncio"))
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True, timeout=200)
    made = Environment(folder / "env")
    pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    made.run(*pip, "--require-hashes", "-r", str(pins), cwd=folder)
    made.run(*pip, str(folder / "dist" / wheel), cwd=folder)
    return made


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_everything_that_it_requires_is_there(installed: Environment, tmp_path: Path) -> None:
    assert installed.run("python", "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"
    where = installed.run("python", "-c", "import outrider; print(outrider.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.bin.parent))


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
