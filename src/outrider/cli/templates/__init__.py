"""The texts of files that commands write: valid in themselves but for $names, which string.Template fills in."""

from __future__ import annotations

from importlib.resources import files
from string import Template


def fill(name: str, **values: str) -> str:
    text = (files(__name__) / f"{name}.template").read_text(encoding="utf-8")
    return Template(text).substitute(values)
