"""An import loads what its names need, and a list of commands no driver: counted in modules, because times vary.

The aim is 0.25 s for `import outrider` and 0.4 s for `outrider --help`, on a quiet machine.
"""

from __future__ import annotations

import subprocess
import sys

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
        "postgres.embedded",
        "relay",
        "rollup",
        "streams",
        "testing",
    )
)
FOR_COMMANDS = {"rich", "typer", "structlog"}
MOST_MODULES = 70
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
