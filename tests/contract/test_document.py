"""The snapshot: what it holds, that it is stable, and how it is read back when somebody has been at it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from outrider import Event
from outrider.contract import Contract
from outrider.errors import DeclarationError


class Line(BaseModel):
    """One of the things ordered."""

    model_config = ConfigDict(extra="forbid")
    required: bool = True
    sku: str = Field(title="SKU", description="What it is.")
    price: Annotated[Decimal, Field(ge=0, max_digits=9, decimal_places=2)]


def placed() -> type[Event]:
    class OrderPlaced(Event, type="contract.placed", version=3, key="order_id", deprecated_after="2027-01-31"):
        """A customer has placed an order."""

        kind: ClassVar[str] = "order"
        order_id: str = Field(alias="orderId")
        lines: list[Line]
        odd: Any = Field(default_factory=object)

    return OrderPlaced


def test_what_is_on_the_wire_and_nothing_else() -> None:
    contract = Contract.of(placed(), "shop")
    assert contract.schema == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {
            "Line": {
                "description": "One of the things ordered.",
                "properties": {
                    "required": {"default": True, "type": "boolean"},
                    "sku": {"description": "What it is.", "title": "SKU", "type": "string"},
                    "price": {
                        "type": "string",
                        "format": "decimal",
                        "minimum": 0,
                        "x-max-digits": 9,
                        "x-decimal-places": 2,
                    },
                },
                "required": ["sku", "price"],
                "type": "object",
            }
        },
        "description": "A customer has placed an order.",
        "properties": {
            "orderId": {"type": "string"},
            "lines": {"items": {"$ref": "#/$defs/Line"}, "type": "array"},
            "odd": {},
        },
        "required": ["orderId", "lines"],
        "type": "object",
        "x-outrider": {
            "type": "contract.placed",
            "version": 3,
            "key": "orderId",
            "producer": "shop",
            "deprecated_after": "2027-01-31",
        },
    }
    assert str(contract) == "contract.placed version 3"


def test_the_text_is_stable_and_comes_back() -> None:
    text = Contract.of(placed(), "shop").text
    assert text == Contract.of(placed(), "shop").text
    assert text.endswith("}\n")
    assert Contract.read(text).text == text
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_defaults_are_required_by_no_setting() -> None:
    class Odd(Event, type="contract.odd_defaults"):
        model_config = ConfigDict(json_schema_serialization_defaults_required=True)
        note: str = ""

    assert "required" not in Contract.of(Odd, "shop").schema


def test_a_type_that_json_schema_cannot_express() -> None:
    class Strange:
        pass

    class Odd(Event, type="contract.strange"):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        it: Strange

    with pytest.raises(DeclarationError, match=r"test_document.*Odd has no contract: .*Strange.*WithJsonSchema"):
        Contract.of(Odd, "shop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "it is not JSON"),
        (lambda text: "<<<<<<< ours\n" + text, "it is not JSON"),
        (lambda _: "[]", "it has no x-outrider object, so it is no snapshot of an event"),
        (lambda _: "{}", "it has no x-outrider object"),
        (lambda text: text.replace('"version": 3', '"version": "3"'), "its x-outrider names no type and version"),
        (lambda text: text.replace('"contract.placed"', '"Contract Placed"'), "its x-outrider names no type and version"),
        (lambda text: text.replace("#/$defs/Line", "#/$defs/Other"), "refers to 'Other', which it does not define"),
        (lambda text: text.replace("2027-01-31", "soon"), "it is no JSON Schema of an event"),
        (lambda text: text.replace('"type": "boolean"', '"type": 7'), "it is no JSON Schema of an event"),
        (lambda text: text.replace('"properties": {', '"properties": [], "lost": {', 1), "it is no JSON Schema of an event"),
        (lambda _: '{"x-outrider": {"type": "a.b", "version": 1}, "type": "string"}', "an event is an object with fields"),
    ],
)  # fmt: skip
def test_a_snapshot_that_somebody_has_been_at(change: Any, message: str) -> None:
    text = change(Contract.of(placed(), "shop").text)
    with pytest.raises(ValueError, match=message):
        Contract.read(text)
