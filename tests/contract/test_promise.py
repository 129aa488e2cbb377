"""A snapshot remembers what was in every event, when the class no longer tells; what came later stays optional."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.contract.making import A_DICT, A_LIST, A_TUPLE, contract, event, model

from outrider.contract import Contract, compare, fits, reading
from outrider.contract.change import promised


def refreshed(*steps: Contract) -> Contract:
    """The snapshot after each of these classes has been published in turn."""
    kept, *later = steps
    for step in later:
        assert not any(change.breaks for change in compare(kept, step))
        kept = Contract.read(promised(kept, step).text)
    return kept


def requires(kept: Contract, **fields: Any) -> list[str]:
    view = reading(event("View", {"type": "contract.compared", "foreign": True}, fields))
    return [each.path for each in fits(view, kept)]


def test_a_required_field_that_gets_a_default_is_still_in_every_event() -> None:
    kept = refreshed(contract(customer=str), contract(customer=(str, "anonymous")))
    assert kept.schema["required"] == ["customer"]
    assert kept.schema["properties"]["customer"]["default"] == "anonymous"
    assert requires(kept, customer=str) == []
    again = contract(customer=(str, "nobody"))
    assert compare(kept, again) == []
    assert requires(refreshed(kept, again, contract(customer=str)), customer=str) == [], "and the default may go again"


def test_a_field_that_was_added_with_a_default_is_not() -> None:
    kept = refreshed(contract(a=int), contract(a=int, b=(int, 0)), contract(a=int, b=(int, 1)))
    assert requires(kept, a=int, b=int) == ["b"]
    [change] = compare(kept, contract(a=int, b=int))
    assert change.breaks


def test_a_field_that_may_be_left_out_breaks_however_often_it_was_refreshed() -> None:
    kept = refreshed(contract(a=int), contract(a=(int, 0)))
    [change] = compare(kept, contract(a=(int, Field(default=0, exclude_if=lambda value: value == 0))))
    assert str(change) == "a: was in every event, may be left out"


def test_what_somebody_knows_better_stays() -> None:
    first = contract(a=(int, 0))
    edited = Contract.read(Contract({**first.schema, "required": ["a"]}).text)
    assert compare(edited, first) == []
    assert requires(refreshed(edited, first, contract(a=(int, 1))), a=int) == []


def test_a_break_begins_anew() -> None:
    assert "required" not in promised(contract(a=int, b=int), contract(a=(int, 0))).schema


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: inner,
        lambda inner: A_LIST[inner],
        lambda inner: A_DICT[str, inner],
        lambda inner: A_TUPLE[int, inner],
        lambda inner: inner | None,
        lambda inner: int | A_LIST[inner | None],
        lambda inner: model("Outer", inner=inner),
        lambda inner: inner | model("Other", z=int),
        lambda inner: Annotated[
            model("One", kind=Literal["one"], inner=inner) | model("Two", kind=Literal["two"]),
            Field(discriminator="kind"),
        ],
    ],
)
def test_at_every_depth(around: Any) -> None:
    was, now = around(model(a=int)), around(model(a=(int, 0), b=(int, 0)))
    kept = refreshed(contract(x=was), contract(x=now))
    assert requires(kept, x=was) == []
    assert requires(kept, x=around(model(b=int))) != []


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


class Labelled(BaseModel):
    label: str = "none"
    children: list[Labelled] = []


def test_recursive_models() -> None:
    assert requires(refreshed(contract(x=Tree), contract(x=Labelled)), x=Tree) == []


def test_a_model_at_two_places_is_required_where_it_was_at_both() -> None:
    old, new, now = model("Old", a=int), model("New", a=(int, 0)), model(a=(int, 0))
    assert requires(refreshed(contract(x=old, y=old), contract(x=now, y=now)), x=old, y=old) == []
    assert requires(refreshed(contract(x=old, y=new), contract(x=now, y=now)), x=old, y=old) == ["x.a", "y.a"]


def test_a_new_place_of_a_known_model() -> None:
    kept = refreshed(contract(x=model(a=int)), contract(x=model(a=(int, 0)), y=(model(a=(int, 0)) | None, None)))
    assert requires(kept, x=model(a=int)) == []
