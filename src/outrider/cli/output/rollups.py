"""How `outrider rollup` prints checks, standings, ticks and plans for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from outrider.cli.output.text import capped, counted, moment, one_line, roughly, say, short
from outrider.postgres.rollups import MOST, Aside, Rolling, RollupFinding, Step, Tick
from outrider.rollup.rollup import Rollup

KEY = 40
"""Characters of a key that are shown."""


def tell(found: Sequence[RollupFinding], *, blocks: bool = False) -> None:
    width = max((len(each.value) for each in found), default=0)
    for each in found:
        mark = "blocks: " if blocks and each.blocks and not each.passed else ""
        style = "" if each.passed else "bold red" if mark else "yellow"
        verdict = "PASS" if each.passed else "FAIL"
        say(f"{verdict}  {each.topic:<16}{each.value:<{width}}  {mark}{one_line(each.detail)}", style)


def tell_installed(rollup: Rollup, made: list[str] | None, scheduler: str) -> None:
    who = who_ticks(scheduler, rollup.context, timedelta(seconds=rollup.every))
    if made is None:
        say(f"nothing was changed: {rollup.name} is installed as it is declared; {who}")
        return
    say(f"{rollup.name} is installed; {who}")
    for each in made:
        say(_first(each), indent=2)


def tell_standing(each: Rolling, asides: Sequence[Aside], now: datetime) -> None:
    off = f", uninstalled {moment(each.uninstalled_at)}: kept for the rows that wait" if each.uninstalled_at else ""
    say(f"{one_line(each.name)} on {one_line(each.source)}, installed {moment(each.installed_at)}{off}", "bold")
    for label, text, wrong in _standing(each, now):
        say(f"{label:<11} {text}", "yellow" if wrong else "", indent=2)
        if label == "set aside":
            for row in asides:
                key = "no key" if row.group_key is None else f"key {_start(row.group_key)}"
                say(f"{row.id} ({key}, {moment(row.set_aside_at)}): {one_line(short(row.error))}", indent=4)


def _standing(each: Rolling, now: datetime) -> Iterator[tuple[str, str, bool]]:
    """Label, text, and whether it needs attention."""
    ticked = "not yet" if each.ticked_at is None else f"{roughly(now - each.ticked_at)} ago"
    yield "who", f"{who_ticks(each.scheduler, one_line(each.context), each.every)}; last {ticked}", False
    oldest = "" if each.oldest_at is None else f", the oldest for {roughly(now - each.oldest_at)}"
    yield "waiting", f"{capped(each.pending, MOST)}{oldest}", False
    again = f"; to retry: outrider rollup run {one_line(each.name)} --retry" * bool(each.set_aside)
    yield "set aside", f"{capped(each.set_aside, MOST)}{again}", bool(each.set_aside)
    held = f"debounce {span(each.debounce)}, threshold {each.threshold}, longest wait {span(each.max_wait)}"
    yield "settings", held, False
    for complaint in each.complaints:
        yield "", one_line(complaint), True
    yield "last run", _last_run(each.last_run), bool(each.last_run and each.last_run["result"] == "error")
    if each.last_run and each.last_run["error_text"]:
        yield "", one_line(short(each.last_run["error_text"])), True


def _last_run(last: dict[str, Any] | None) -> str:
    if last is None:
        return "none that found something to do"
    return f"{last['result']} {moment(last['run_at'])}: {_figures(last)}"


def tell_tick(name: str, ticked: Tick) -> None:
    match ticked.result:
        case "skipped":
            say(f"{name}: skipped: another tick runs; nothing was done")
            return
        case "idle":
            said = f"idle: nothing is due, {waiting(ticked.pending_post)}"
        case "processed":
            said = f"processed: {_figures(asdict(ticked))}"
        case "error":
            said = f"error: nothing was emitted, {waiting(ticked.pending_post)} on"
    say(f"{name}: {said}; {ticked.duration_ms:.0f} ms", "bold red" if ticked.result == "error" else "")
    if ticked.error_text:
        say(one_line(short(ticked.error_text)), "yellow", indent=2)


def _figures(of: dict[str, Any]) -> str:
    groups, pieces = counted(of["groups_emitted"], "rollup event"), counted(of["pieces_emitted"], "single event")
    skipped = f", {counted(of['conflicts_skipped'], 'notification')} skipped" * bool(of["conflicts_skipped"])
    left = f"{of['set_aside']:,} set aside, {of['pending_post']:,} left waiting"
    return f"{groups} and {pieces} of {counted(of['rows_marked'], 'row')}{skipped}, {left}"


def tell_plan(steps: Sequence[Step]) -> None:
    for each in steps:
        for line in lines(each):
            say(line, "yellow" if each.action == "keep" else "")


def lines(each: Step, *, whole: bool = False) -> Iterator[str]:
    why = f": stays: {one_line(each.why)}" if each.action == "keep" else ""
    yield f"{each.step}. {one_line(each.what)}{why}"
    if each.command is not None and (each.action == "do" or whole):
        yield f"   {one_line(each.command)}"


def who_ticks(scheduler: str, context: str, every: timedelta) -> str:
    if scheduler == "worker":
        return f"the workers of {context} tick it, every {span(every)}"
    minutes = math.ceil(every / timedelta(minutes=1))  # its finest step
    return f"pg_cron ticks it, every {span(timedelta(minutes=minutes))}"


def fields(each: Rolling) -> dict[str, Any]:
    """For JSON: durations in seconds."""
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in asdict(each).items()
    }


def span(of: timedelta) -> str:
    seconds = int(of.total_seconds())
    return f"{seconds // 60} min" if seconds % 60 == 0 and seconds >= 120 else f"{seconds} s"


def waiting(rows: int) -> str:
    return f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'}"


def _start(key: str) -> str:
    return one_line(key if len(key) <= KEY else f"{key[:KEY]}…")


def _first(command: str) -> str:
    """The first line."""
    first, _, more = command.partition("\n")
    return one_line(short(first)) + " …" * bool(more)
