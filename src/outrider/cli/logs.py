"""Where log lines of a command go: to stderr, as text or as JSON, unless the app has configured logging itself."""

from __future__ import annotations

import json
import logging
from enum import StrEnum

LOGGER = "outrider"
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class Level(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        line |= fields if "event" in fields else {"event": record.getMessage()} | fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def arrange(level: Level | None, as_json: bool | None) -> None:
    """None means that the option was not given. An app that has configured logging keeps its own."""
    logger = logging.getLogger(LOGGER)
    own = logger.hasHandlers()
    if level is not None or not own:
        logger.setLevel((level or Level.info).value.upper())
    if own and as_json is None:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers = [handler]
    logger.propagate = False
    # Our own signals report what goes wrong with a session; the driver need not repeat it.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
