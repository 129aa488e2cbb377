"""docs/contracts.md cannot lie: its programs are written as they stand there, its commands run, their output compared.

Those of Outrider run in this process, all others in a shell.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_contracts.py
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli import inprocess

pytestmark = pytest.mark.verify

PAGE = Path(__file__).parents[2] / "docs" / "contracts.md"
BLOCKS = re.compile(r"^```(py|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
UPDATE = os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1"


def sections() -> dict[str, str]:
    """What stands under each heading; the base comes first."""
    text = PAGE.read_text().split("\n## Each kind of break, and what it says\n")[1]
    base, *rest = re.split(r"^### ", text, flags=re.MULTILINE)
    return {"the base": base} | {part.split("\n")[0]: part for part in rest}


def write(folder: Path, block: str) -> None:
    """A whole file, or classes and functions that replace those of the same name and come right before the app."""
    name, code = re.fullmatch(r"# (\w+\.py)\n(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
    file = folder / name
    if "app = Outrider" in code or not file.exists():
        file.write_text(block)
        return
    text = file.read_text()
    for head in re.findall(r"^(?:class|def) \w+\(", code, re.MULTILINE):
        text = re.sub(rf"^{re.escape(head)}.*?\n\n\n", "", text, flags=re.DOTALL | re.MULTILINE)
    file.write_text(text.replace("app = Outrider", f"{code}\n\napp = Outrider"))


def run(folder: Path, command: str) -> str:
    first, *rest = shlex.split(command)
    done = inprocess.run(folder, *rest) if first == "outrider" else shell(folder, command)
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    assert (done.returncode == 1) == bool(re.search(r"\d to fix|^refused|^outrider: ", output, re.MULTILINE)), output
    return output.replace(f"{folder}/", "")


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("OUTRIDER_")} | {"PATH": path}
    line = ["/bin/sh", "-c", command]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)


def play(folder: Path, section: str) -> str:
    """The section as it should be: the same text, with what the commands really said."""

    def replay(found: re.Match[str]) -> str:
        language, body = found.groups()
        if language == "py":
            write(folder, body)
            return found.group()
        lines = [f"$ {command}\n{run(folder, command)}" for command, _ in COMMAND.findall(body)]
        return f"```console\n{''.join(lines)}```"

    return BLOCKS.sub(replay, section)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder as the page begins with it, and the text of that part as it should be."""
    folder = tmp_path_factory.mktemp("base")
    return folder, play(folder, sections()["the base"])


@pytest.mark.parametrize("heading", sections())
def test_the_messages_on_the_page_are_the_real_ones(heading: str, base: tuple[Path, str], tmp_path: Path) -> None:
    folder, real = base
    shown = sections()[heading]
    if heading != "the base":
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        real = play(tmp_path, shown)
    if UPDATE:
        PAGE.write_text(PAGE.read_text().replace(shown, real))
        return
    assert shown == real
