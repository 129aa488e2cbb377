"""Where the peers run: a Python environment and a node of their own, in a cache folder, made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.trial import tell

CACHE = Path.home() / ".cache" / "outrider-benchmarks" / "peers"
PYTHON_PEERS = ["procrastinate==3.10.0", "pgqueuer==1.6.0", "asyncpg==0.32.0", "psycopg[binary,pool]==3.3.9"]
NODE_PEERS = ["graphile-worker@0.18.0", "pg@8", "node@22"]
HERE = Path(__file__).parent


class Unavailable(Exception):
    """Why a peer cannot run here."""


def python() -> list[str]:
    home = CACHE / "python"
    if not (home / "ready").exists():
        tell(f"  installing {', '.join(PYTHON_PEERS)}")
        venv.create(home, with_pip=True, clear=True)
        _run([str(home / "bin" / "pip"), "install", "-q", *PYTHON_PEERS])
        (home / "ready").touch()
    return [str(home / "bin" / "python")]


def node() -> list[str]:
    home = CACHE / "node"
    if not (home / "ready").exists():
        if shutil.which("npm") is None:
            raise Unavailable("npm is not installed")
        tell(f"  installing {', '.join(NODE_PEERS)}")
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--no-audit", "--no-fund", *NODE_PEERS], cwd=home)
        (home / "ready").touch()
    shutil.copy(HERE / "graphile.mjs", home)
    return [str(home / "node_modules" / ".bin" / "node"), str(home / "graphile.mjs")]


def ours(module: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.peers.{module}"]


def theirs(module: str) -> list[str]:
    return [*python(), str(HERE / f"{module}.py")]


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable((done.stderr.strip() or "no reason given").splitlines()[-1])
