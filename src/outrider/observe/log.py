"""One structured line per signal, through structlog into the standard logger "outrider".

The message reads as logfmt on any handler; the same fields ride on the record as `extra`, for JSON formatters.
The application decides where lines go and at which level: nothing is printed unless it configured logging.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

from outrider.signals import Published, Signal, Taken

_render = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)
_logger = logging.getLogger("outrider")


def _as_record(logger: Any, method: str, fields: Any) -> tuple[tuple[str], dict[str, Any]]:
    extra = {name: value for name, value in fields.items() if name != "event"}
    shown = {name: value for name, value in fields.items() if value is not None}
    return (str(_render(logger, method, shown)),), {"extra": extra}


_lines = structlog.wrap_logger(_logger, processors=[structlog.stdlib.filter_by_level, _as_record])


def write_line(signal: Signal) -> None:
    match signal:
        case Published(envelope):
            if _logger.isEnabledFor(logging.INFO):
                _lines.info(
                    "published",
                    event_id=str(envelope.id),
                    event_type=envelope.event_type,
                    source=envelope.source,
                    target=envelope.target,
                    workspace_id=envelope.workspace_id,
                )
        case Taken(subscription, partition, events, outcome):
            if _logger.isEnabledFor(logging.DEBUG):
                _lines.debug("taken", subscription=subscription, partition=partition, events=events, outcome=outcome)
