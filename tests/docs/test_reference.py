"""The reference is made from the code, and leaves out nothing that others may use."""

from __future__ import annotations

import re

import pytest
from docs_site import reference

import outrider
from outrider.options import Declaration
from outrider.schedule import Schedule

POSITIONAL: dict[type, set[str]] = {Schedule: {"cron", "job"}}


@pytest.mark.parametrize("declared", [each for each, _ in reference.OPTIONS.values()])
def test_every_option_has_a_sentence(declared: type) -> None:
    told = {name: said for name, _, said in reference.options_of(declared)}
    wanted = declared.options() if issubclass(declared, Declaration) else getattr(declared, "__annotations__", {})
    assert told.keys() == {name for name in wanted if not name.startswith("_")} - POSITIONAL.get(declared, set())
    assert all(said.rstrip().endswith((".", "]", ")")) for said in told.values())


def test_every_declaration_is_there() -> None:
    assert {*Declaration.__subclasses__()} <= {each for each, _ in reference.OPTIONS.values()}


def test_every_public_name_is_there() -> None:
    assert sorted(name for names in reference.API.values() for name in names) == sorted(outrider.__all__)


def test_every_function_that_operators_may_call_is_there() -> None:
    rights = (reference.SQL / "admin/roles.sql").read_text()
    granted = {
        name
        for names in re.findall(r"grant execute on function([^;]*?)\s+to /\*prefix\*/operator;", rights)
        for name in re.findall(r"/\*schema\*/(\w+)", names)
    }
    listed = {name for names in reference.PUBLIC_SQL.values() for name in names}
    assert "withdraw" in granted
    assert granted <= listed | reference.OF_COMMANDS
    assert not listed & reference.OF_COMMANDS


def test_a_function_has_its_contract() -> None:
    page = dict(reference.pages())["reference/sql.md"]
    rename = page.partition("### rename\n")[2].partition("\n### ")[0]
    assert rename.startswith("\nGive a subscription another name")
    assert "outrider.rename(" in rename
    assert "- Returns how many receipts there were." in rename


def test_what_base_classes_have_is_there() -> None:
    page = dict(reference.pages())["reference/api.md"]
    assert page.count("::: ") == page.count("inherited_members: true") > len(outrider.__all__)
