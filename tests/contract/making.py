"""Event classes and models made on the spot, from fields given as keywords: a type, or (type, default)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from outrider import Event
from outrider.contract import Contract

_make: Any = create_model
A_LIST: Any = list
A_TUPLE: Any = tuple
A_DICT: Any = dict
"""For annotations that are computed, which mypy does not take for types."""


def definition(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: each if isinstance(each, tuple) else (each, ...) for name, each in fields.items()}


def event(name: str, options: dict[str, Any], fields: dict[str, Any]) -> type[Event]:
    made: type[Event] = _make(name, __base__=Event, __cls_kwargs__=options, **definition(fields))
    return made


def model(name: str = "Inner", **fields: Any) -> Any:
    made: type[BaseModel] = _make(name, **definition(fields))
    return made


def settled(annotation: Any, **settings: Any) -> Any:
    """A model with one field, and a `model_config`."""
    made: type[BaseModel] = _make("Inner", __config__=settings, t=(annotation, ...))
    return made


def contract(options: dict[str, Any] | None = None, **fields: Any) -> Contract:
    return Contract.of(event("Placed", {"type": "contract.compared"} | (options or {}), fields), "shop")
