"""The page on versions says what the code, the package and the CI say; the changelog keeps its form."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from tests.release.building import ROOT, loaded

from outrider.postgres.dsn import OLDEST

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def table() -> dict[str, tuple[str, str]]:
    section = (ROOT / "docs/versions.md").read_text().partition("## What is supported\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {name.strip("`"): (supported, tested) for name, supported, tested in rows}


def pythons() -> list[str]:
    return [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]


def test_python() -> None:
    supported, tested = table()["Python"]
    assert supported == f"{PROJECT['requires-python'].removeprefix('>=')} and newer"
    assert tested == ", ".join(pythons())
    assert pythons()[0] == PROJECT["requires-python"].removeprefix(">=")


def test_the_workflow_runs_every_python() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    matrix = re.search(r"python: \[(.+)\]", workflow)
    assert matrix is not None
    assert re.findall(r'"([\d.]+)"', matrix[1]) == pythons()
    assert "run: .ci/run" in workflow


def test_the_workflow_pins_its_actions() -> None:
    """By commit, with the release in a comment. Check a new one, and the file, with
    `check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml`, which is none of our pins."""
    used = re.findall(r"uses: (.+)$", (ROOT / ".github/workflows/ci.yml").read_text(), re.MULTILINE)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []


def test_postgres() -> None:
    supported, tested = table()["Postgres"]
    older = re.findall(r"\btest-(\d+)\b", MAKEFILE.partition(".PHONY")[2].partition("\n")[0])
    newest = re.findall(r"PYTEST,(\d+)\) --tier test", MAKEFILE)
    assert supported == f"{OLDEST} and newer"
    assert tested.partition(" (")[0] == ", ".join([*older, *newest])
    assert min(map(int, older)) == OLDEST


def test_brokers() -> None:
    said = (ROOT / "requirements/brokers.sh").read_text()
    for name, program in (("Redis", "redis-server"), ("NATS server", "nats-server")):
        assert f"{program} {table()[name][0].removesuffix(' and newer')} or newer" in said


def test_libraries() -> None:
    extras = [each for extra in PROJECT["optional-dependencies"].values() for each in extra]
    bounds = dict(
        re.findall(r"^([\w-]+)(?:\[\w+\])?(>=.*)$", "\n".join([*PROJECT["dependencies"], *extras]), re.MULTILINE)
    )
    named = {name: supported for name, (supported, _) in table().items() if supported.startswith(">=")}
    assert named == {name: bounds[name] for name in named}
    assert {"psycopg", "pydantic", "sqlalchemy", "asyncpg", "django", "redis", "nats-py"} <= named.keys()


@pytest.mark.parametrize("name", ["Redis", "NATS server", "psycopg", "django"])
def test_every_row_is_there(name: str) -> None:
    assert name in table()


# The changelog and the checklist

KEPT = "# Changelog\n\n## Unreleased\n\n## 1.2.0, 2030-01-31\n\n### Added\n- a\n\n### Fixed\n- b\n"


@pytest.mark.parametrize(
    ("changelog", "wrong"),
    [
        (KEPT, []),
        (KEPT.replace("Unreleased\n", "Unreleased\n\n### Added\n- c\n"), ["there are changes under 'Unreleased'"]),
        (KEPT.replace(", 2030-01-31", ""), ["there is no section '1.2.0, <date>'"]),
        (KEPT.replace("1.2.0", "1.1.0"), ["there is no section '1.2.0, <date>'"]),
        (KEPT.replace("### Added", "### News"), ["the kinds under '1.2.0, 2030-01-31' are News, Fixed"]),
        (KEPT.replace("### Fixed", "### Z").replace("### Added", "### Fixed"), ["the kinds under"]),
        (KEPT.replace("## Unreleased\n", ""), ["the first section is not 'Unreleased'"]),
    ],
)
def test_the_checklist_reads_the_changelog(changelog: str, wrong: list[str]) -> None:
    found = list(loaded("release").wrong_changelog(changelog, "1.2.0"))
    assert len(found) == len(wrong)
    assert all(text.startswith(said) for text, said in zip(found, wrong, strict=True))


def test_the_changelog_has_its_kinds_in_order() -> None:
    found = loaded("release").wrong_changelog((ROOT / "CHANGELOG.md").read_text(), PROJECT["version"])
    assert [each for each in found if each.startswith(("the kinds", "the first section"))] == []


# Habits


def test_pre_commit_runs_what_make_check_runs() -> None:
    check = MAKEFILE.partition("\ncheck: ")[2].partition("\n\n")[0]
    wanted = re.findall(r"@\$\(BIN\)/(.+)$", check, re.MULTILINE)
    hooks = re.findall(r"entry: \.venv/bin/(.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == wanted
