"""Named points where a fault test makes the process die, stop, fail or wait. Off unless the environment asks for it.

OUTRIDER_FAIL="name:action[:n]", several separated by commas: at every hit of the point, or at its n-th hit only.
OUTRIDER_FAIL_LOG=path: every hit of any point appends its name as a line.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

DECLARED = (
    ("take.sent", "before the take is sent"),
    ("take.done", "after the take returned, before any handler"),
    ("handle.before", "before one call of a handler"),
    ("handle.after", "after one call of a handler"),
    ("commit.before", "before COMMIT is sent"),
    ("commit.after", "after COMMIT was answered"),
    ("rollback.after", "after a rollback, before the failure is recorded"),
    ("claim.sent", "before the claim of jobs is sent"),
    ("claim.done", "after it was answered, before any of them"),
    ("run.before", "before one call of a job"),
    ("run.after", "after one call of a job, before it is settled"),
    ("settle.sent", "before what became of jobs is sent"),
    ("settle.done", "after it was answered"),
    ("route.done", "after events have become jobs"),
    ("relay.sent", "before a relay takes"),
    ("relay.taken", "after it has taken, before anything is appended"),
    ("relay.opened", "after it began with a new stream, before anything is appended to it"),
    ("relay.appended", "after the broker's answer, before COMMIT"),
    ("relay.settled", "after COMMIT was answered"),
    ("relay.recovered", "after it has compared its streams with what it knows"),
    ("inbox.read", "after an inbox has read, before anything is written"),
    ("inbox.settled", "after COMMIT was answered"),
)
POINTS = frozenset(name for name, _ in DECLARED)
EXIT_CODE = 86

Action = Callable[[str], None]


class FailPoint(Exception):
    """The action `raise` of a fail point. Its text is the name of the point."""


def hit(name: str) -> None:
    if _armed is not None:
        _armed.hit(name)


def load(environ: Mapping[str, str]) -> None:
    """Arm the points that `environ` asks for, in place of those before; all counts start again."""
    global _armed
    faults: defaultdict[str, list[_Fault]] = defaultdict(list)
    if asked := environ.get("OUTRIDER_FAIL", "").strip():
        for item in asked.split(","):
            name, fault = _parsed(item.strip())
            faults[name].append(fault)
    log = environ.get("OUTRIDER_FAIL_LOG") or None
    if log is not None:
        try:
            Path(log).touch()
        except OSError as error:
            raise ConfigError(f"OUTRIDER_FAIL_LOG={log!r} cannot be written: {error.strerror}") from None
    _armed = _Armed(faults, log) if faults or log else None


@dataclass(frozen=True, slots=True)
class _Fault:
    act: Action
    only: int | None

    def due(self, number: int) -> bool:
        return self.only is None or self.only == number


class _Armed:
    def __init__(self, faults: Mapping[str, Iterable[_Fault]], log: str | None) -> None:
        self._faults = faults
        self._log = log
        self._numbers = {name: itertools.count(1) for name in POINTS}

    def hit(self, name: str) -> None:
        number = next(self._numbers[name])
        if self._log is not None:
            _append(self._log, name)
        for fault in self._faults.get(name, ()):
            if fault.due(number):
                fault.act(name)


def _append(log: str, name: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{name}\n".encode())
    finally:
        os.close(file)


def _parsed(item: str) -> tuple[str, _Fault]:
    name, _, rest = item.partition(":")
    action, _, number = rest.partition(":")
    if name not in POINTS:
        known = ", ".join(f"{point} ({when})" for point, when in DECLARED)
        raise ConfigError(f"OUTRIDER_FAIL: there is no fail point {name!r} in {item!r}. There are: {known}")
    if number and not (number.isdecimal() and int(number) > 0):
        raise ConfigError(f"OUTRIDER_FAIL: {number!r} in {item!r} is not the number of a hit: 1, 2, …")
    return name, _Fault(_action(action, item), int(number) if number else None)


def _action(text: str, item: str) -> Action:
    kind, _, seconds = text.partition("=")
    if kind == "sleep":
        return _sleeping(seconds or "1", item)
    if text not in ACTIONS:
        known = ", ".join([*ACTIONS, "sleep (1 second)", "sleep=SECONDS"])
        raise ConfigError(f"OUTRIDER_FAIL: there is no action {text!r} in {item!r}. There are: {known}")
    return ACTIONS[text]


def _sleeping(seconds: str, item: str) -> Action:
    try:
        length = float(seconds)
    except ValueError:
        length = -1.0
    if not 0 <= length <= 3600:
        raise ConfigError(f"OUTRIDER_FAIL: {seconds!r} in {item!r} is not a number of seconds from 0 to 3600")
    return lambda _: time.sleep(length)


def _raise(name: str) -> None:
    raise FailPoint(name)


# raise_signal and not os.kill: the signal goes to this very thread, which so gets no further.
ACTIONS: Mapping[str, Action] = {
    "exit": lambda _: os._exit(EXIT_CODE),
    "kill": lambda _: signal.raise_signal(signal.SIGKILL),
    "stop": lambda _: signal.raise_signal(signal.SIGSTOP),
    "raise": _raise,
}

_armed: _Armed | None = None
load(os.environ)
