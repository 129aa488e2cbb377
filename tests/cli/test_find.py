"""How a command finds the app: the option, the environment, pyproject.toml; and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run

from outrider.errors import ConfigError

SHOP = 'from outrider import Outrider\napp = Outrider(context="shop", schema="{schema}")\napp.reader(name="shop.all")\n'


def write(folder: Path, name: str, schema: str) -> None:
    (folder / f"{name}.py").write_text(SHOP.format(schema=schema))


def schema_used(outrider: Run, *arguments: str, **env: str) -> str:
    """Reads it off the script, which needs no database."""
    done = outrider("migrate", "--sql", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("create schema if not exists ")[1].split(";")[0].strip('"')


def test_option_before_environment_before_pyproject(outrider: Run, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write(tmp_path, name, f"of_{name}")
    assert schema_used(outrider) == "outrider"
    (tmp_path / "pyproject.toml").write_text('[tool.outrider]\napp = "one:app"\n')
    assert schema_used(outrider) == "of_one"
    assert schema_used(outrider, OUTRIDER_APP="two:app") == "of_two"
    assert schema_used(outrider, "--app", "three:app", OUTRIDER_APP="two:app") == "of_three"
    assert schema_used(outrider, "--schema", "given") == "given"


def test_the_apps_database_unless_one_is_given(outrider: Run, database: str, tmp_path: Path) -> None:
    app = f'from outrider import Outrider\napp = Outrider(dsn="{database}")\napp.reader(name="a.reader")\n'
    (tmp_path / "shop.py").write_text(app)
    done = outrider("migrate", "--app", "shop:app", "--json", env={"OUTRIDER_DSN": "postgresql://127.0.0.1:1/wrong"})
    assert [each["name"] for each in json.loads(done.stdout)["registered"]] == ["a.reader"]
    given = outrider("migrate", "--app", "shop:app", "--dsn", "postgresql://127.0.0.1:1/given")
    assert given.returncode == 1
    assert "nothing listens at 127.0.0.1:1" in given.stderr


def test_the_database_of_pyproject_when_nobody_names_one(database: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.outrider]\ndsn = "{database}"\n')
    assert inprocess.run(tmp_path, "migrate", "status").returncode == 0
    (tmp_path / "shop.py").write_text("from outrider import Outrider\napp = Outrider()\n")
    assert inprocess.run(tmp_path, "migrate", "status", "--app", "shop:app").returncode == 0
    given = inprocess.run(tmp_path, "migrate", "status", "--dsn", "postgresql://shop:hunter2@127.0.0.1:1/given")
    assert (given.returncode, given.stderr.partition(":1:")[0]) == (1, "outrider: nothing listens at 127.0.0.1")
    assert "hunter2" not in given.stdout + given.stderr


@pytest.mark.parametrize(
    ("content", "app", "sentence"),
    [
        (None, "shop:app", "neither in"),
        (None, "shop", "module:name"),
        ("import nowhere_to_be_found", "shop:app", "No module named 'nowhere_to_be_found'"),
        ("raise ValueError('broken\\nbadly')", "shop:app", "ValueError: broken;"),
        ("raise SystemExit(3)", "shop:app", "SystemExit: 3"),
        ("def broken(:", "shop:app", "SyntaxError"),
        ("app = 1", "shop:app", "is a int, not an Outrider: create one"),
        ("from outrider import Outrider\nshop = Outrider()", "shop:app", "name it as shop:shop"),
        ("from outrider import Outrider\napp = Outrider(schema='pg_x')", "shop:app", "pg_"),
    ],
)
def test_an_app_of_no_use(outrider: Run, tmp_path: Path, content: str | None, app: str, sentence: str) -> None:
    if content is not None:
        (tmp_path / "shop.py").write_text(content)
    done = outrider("migrate", "--app", app)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("outrider: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("[tool", "not valid TOML"), ("[tool.outrider]\napp = 1", "not a string"), ("tool = 1", "")],
)
def test_a_broken_pyproject(outrider: Run, tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    done = outrider("migrate", "--sql")
    assert done.returncode == (1 if sentence else 0), done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_errors_are_ours() -> None:
    from outrider.cli.target import find_app

    with pytest.raises(ConfigError, match="like shop:app"):
        find_app("shop")
