"""The values of a log line's fields, and the fields that the application has bound with `structlog.contextvars`."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import structlog

from outrider.redaction import mask, sanitise

FIELD_BYTES = 300
"""The most bytes of a field whose value comes from outside."""
_SENTENCES = {"error", "reason", "hint", "handlers"}
"""Fields with whole sentences: they are masked, because they may contain a password."""
_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime", "traceback"}
"""Names that a log record refuses, and the one field that is written as it is."""


def safe(name: str, value: Any) -> Any:
    """Keys, tenants, sources and notifications come from outside: they must not forge a line, nor fill the log."""
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        return value
    if name == "traceback":
        return value
    if name in _SENTENCES:
        return sanitise(mask(value))
    if 4 * len(value) <= FIELD_BYTES and value.isprintable():
        return value
    return sanitise(value[: FIELD_BYTES + 1].replace("\n", "\\n").replace("\t", "\\t"), FIELD_BYTES)


def merge_bound(_logger: Any, _method: str, fields: Any) -> Any:
    """A line's own fields win. An error here would silence the log, so every name and value is made to fit."""
    for name, value in structlog.contextvars.get_contextvars().items():
        fields.setdefault(_fitting(name), _shown(value))
    return fields


def _fitting(name: str) -> str:
    fitting = "".join(each if each.isalnum() or each in "_.-" else "_" for each in name) or "_"
    return f"{fitting}_" if fitting in _RESERVED else fitting


def _shown(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float):
        return value
    try:
        return safe("", mask(str(value)))
    except Exception:
        return f"<{type(value).__name__}>"
