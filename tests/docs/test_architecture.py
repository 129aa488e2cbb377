"""The walks of docs/architecture.md: the files and functions that they name exist, and the files are short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEP = re.compile(r"\(\.\./(src/[^)]+)\)(?: `([A-Za-z_.]+)`)?")
MOST_LINES = 400
SQL = ROOT / "src" / "outrider" / "postgres" / "sql"
CORE = ["handlers/functions/take.sql", "jobs/functions/claim.sql"]
CORE_LINES = 150
"""At most, without the header."""


def steps(title: str) -> list[tuple[Path, str | None]]:
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [(ROOT / path, name or None) for path, name in STEP.findall(section)]


@pytest.mark.parametrize("title", ["The walk of an event", "The walk of a job"])
def test_a_walk_is_short_and_true(title: str) -> None:
    walk = steps(title)
    files = {path for path, _ in walk}
    assert 5 <= len({path for path in files if path.suffix == ".py"}) <= 12
    for path in files:
        assert len(path.read_text().splitlines()) <= MOST_LINES, path
    for path, name in walk:
        if name is not None:
            assert name in names_in(path), f"{path} has no {name}"


@pytest.mark.parametrize("path", CORE)
def test_the_core_can_be_read(path: str) -> None:
    header, body = (SQL / path).read_text().split("create or replace function", 1)
    assert all(line.startswith("--") for line in header.splitlines())
    assert len(body.splitlines()) <= CORE_LINES


@pytest.mark.parametrize("package", ["worker", "relay", "inbox", "rollup", "postgres"])
def test_the_tree_names_every_module(package: str) -> None:
    tree = PAGE.split("## The code\n", 1)[1].split("```", 2)[1]
    [said] = re.findall(rf"^  {package}/(.*?)(?=^  \w+/|\Z)", tree, re.MULTILINE | re.DOTALL)
    modules = {path.stem for path in (ROOT / "src/outrider" / package).glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"\w+", said))
    named = re.match(r"\s*(?:the only importer of psycopg:)?([\w\s]*)", said)
    assert named is not None
    assert set(named[1].split()) - {"admin", "the"} <= modules


def names_in(path: Path) -> set[str]:
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
            members = node.body if isinstance(node, ast.ClassDef) else []
            found |= {
                f"{node.name}.{each.name}"
                for each in members
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found
