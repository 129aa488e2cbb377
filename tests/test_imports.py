"""An import loads what its names need, and a list of commands no driver: counted in modules, because times vary.

The aim is 0.25 s of CPU for `import outrider` and 0.4 s for `outrider --help`, on a quiet machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

OPTIONAL = {
    "asyncpg", "django", "fastapi", "flask", "jinja2", "nats", "prometheus_client", "redis", "sqlalchemy",
    "starlette", "uvicorn",
}  # fmt: skip
UNWANTED = tuple(
    f"outrider.{each}"
    for each in (
        "cli",
        "dashboard",
        "doctor",
        "inbox",
        "observe",
        "postgres.admin",
        "postgres.embedded",
        "postgres.generations",
        "postgres.handler_batches",
        "postgres.jobs",
        "postgres.schema",
        "relay",
        "rollup",
        "streams",
        "testing",
    )
)
FOR_COMMANDS = {"rich", "typer", "structlog"}
MOST_MODULES = 60
"""Of outrider, for its app and events. Raise it only for what most processes need."""


def loaded_by(program: str) -> set[str]:
    program = f"import sys\ntry:\n    {program}\nexcept SystemExit:\n    pass\nprint('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_an_import() -> None:
    assert {each for each in loaded_by("import outrider") if each.startswith("outrider")} == {"outrider"}
    loaded = loaded_by("from outrider import Event, Outrider")
    assert not loaded & (OPTIONAL | FOR_COMMANDS)
    ours = {each for each in loaded if each.startswith("outrider")}
    assert not {each for each in ours if each.startswith(UNWANTED)}
    assert len(ours) <= MOST_MODULES


def test_the_list_of_commands() -> None:
    loaded = loaded_by("sys.argv = ['outrider', '--help']; from outrider.cli import main; main()")
    assert not loaded & (OPTIONAL | {"structlog", "psycopg", "pydantic"})
    assert not {each for each in loaded if each.startswith("outrider.cli.commands.")}
    assert len({each for each in loaded if each.startswith("outrider")}) <= MOST_MODULES + 10


@pytest.mark.verify
@pytest.mark.parametrize(
    ("program", "most"),
    [
        ("import outrider", 0.25),
        ("from outrider import Event, Outrider", 0.75),
        ("import sys; sys.argv = ['outrider', '--help']; from outrider.cli import main; main()", 0.5),
    ],
)
def test_seconds_of_cpu(program: str, most: float) -> None:
    """The least of five, with slack for a busy machine; docs/versions.md has what was measured."""
    assert min(cpu_of(program) for _ in range(5)) < most


def cpu_of(program: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=200)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
