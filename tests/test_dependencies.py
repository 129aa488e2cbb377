"""Few dependencies, each with a reason; pinned with hashes; a known vulnerability fails the check."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PINS = (ROOT / "requirements/dev.txt").read_text()


def declared() -> dict[str, set[str]]:
    """By the heading under which they are listed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        return {found.group() for each in requirements if (found := re.match(r"[\w.-]+", each))}

    return {
        "At run time": names(project["project"]["dependencies"]),
        "Extras, none of which the core imports": {name for each in extras.values() for name in names(each)},
        "For development": names(project["dependency-groups"]["dev"]),
    }


def test_each_has_its_reason() -> None:
    page = (ROOT / "docs/decisions/0001-dependencies.md").read_text()
    for heading, wanted in declared().items():
        section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `([^`]+)` \|.*\S \|$", section, re.MULTILINE)
        assert sorted(set(rows)) == sorted(wanted), heading


def test_extras_have_their_names() -> None:
    page = (ROOT / "docs/decisions/0001-dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = set(re.findall(r"^\| `([^`]+)` \| (\w+) \|", page, re.MULTILINE))
    assert listed == {
        (re.split(r"[\[>]", each)[0], extra) for extra, requirements in project.items() for each in requirements
    }


def test_without_libpq_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from outrider import Outrider"],
        env=os.environ | {"PSYCOPG_IMPL": "c"},
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: Outrider needs libpq, the client library of Postgres: install it (Debian: apt install libpq5), or "
        "psycopg with its own: pip install 'outrider[binary]'. psycopg says: couldn't import"
    )
    assert "During handling" not in done.stderr


def pinned(text: str) -> set[str]:
    pins = re.findall(r"^([a-z][\w.-]*)==\S+.*?\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    return {name for name, _ in pins}


@pytest.mark.parametrize("file", ["dev.txt", "docs.txt", "moving.txt"])
def test_every_pin_has_hashes_and_no_address(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text()
    assert pinned(text) == set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    assert "://" not in text


def test_every_dependency_is_pinned() -> None:
    assert {name.lower() for name in set().union(*declared().values())} <= pinned(PINS)


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([], 0, "the advisories cannot be reached from here: nothing was audited"),
        ([{"name": "a", "skip_reason": "unknown"}], 0, "nothing was audited"),
        ([{"name": "a", "version": "1", "vulns": []}], 0, ""),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": ""}],
            0,
            "1 of 2 packages were audited",
        ),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
            1,
            "a 1: CVE-1, fixed in 2",
        ),
    ],
)
def test_a_known_vulnerability_fails_the_check(
    found: list[Any], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "requirements/audit.py")
    assert spec is not None
    assert spec.loader is not None
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    monkeypatch.setattr(audit, "ask", lambda: found)
    assert audit.main() == code
    assert said in capsys.readouterr().out
