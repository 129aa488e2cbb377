"""Graphile Worker, the fastest of the peers, on the same server in the same run. It needs node, npm and a registry."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from benchmarks.trial import Case, Trial, polish, tell

CACHE = Path.home() / ".cache" / "outrider-benchmarks" / "graphile"
SCRIPT = Path(__file__).with_suffix(".mjs")


class Unavailable(Exception):
    """Why Graphile Worker cannot run here."""


def install() -> str:
    """Into a cache folder, once; returns the version. npm picks the newest that this node can run."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    found = CACHE / "node_modules" / "graphile-worker" / "package.json"
    if not found.exists():
        tell("  installing graphile-worker with npm")
        (CACHE / "package.json").write_text('{"private": true}')
        command = ["npm", "install", "--no-audit", "--no-fund", "graphile-worker@>=0.16", "pg"]
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(
                f"npm could not install it ({(done.stderr.strip() or 'no reason given').splitlines()[-1]})"
            )
    shutil.copy(SCRIPT, CACHE)
    return str(json.loads(found.read_text())["version"])


def seed(dsn: str, jobs: int) -> None:
    _node(dsn, "seed", jobs)
    polish(dsn)


async def drain(trial: Trial) -> None:
    with trial.window() as window:
        said = json.loads(await asyncio.to_thread(_node, trial.dsn, "drain", trial.events))
        window.elsewhere = said["seconds"], said["cpu"]


def _node(dsn: str, mode: str, jobs: int) -> str:
    parts = conninfo_to_dict(dsn)
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
    environment = {**os.environ, **{name: str(parts[part]) for name, part in names.items()}}
    done = subprocess.run(
        ["node", SCRIPT.name, mode, str(jobs)], cwd=CACHE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Graphile Worker failed: {done.stderr[-2000:]}")
    return done.stdout


def case(version: str, seed: str, jobs: int) -> Case:
    return Case(f"Graphile Worker {version}", seed, jobs, drain)
