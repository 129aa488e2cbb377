"""Fail points: silent unless asked, each action at the hit that was named, and a log that proves each hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import failpoint
from outrider.errors import ConfigError
from outrider.failpoint import EXIT_CODE, POINTS, FailPoint, hit, load

PROGRAM = """
from outrider import failpoint
for n in (1, 2, 3):
    print(n, flush=True)
    failpoint.hit("take.sent")
print("end", flush=True)
"""


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    load({})


def arm(text: str) -> None:
    load({"OUTRIDER_FAIL": text})


def start(fail: str, log: Path | None = None) -> subprocess.Popen[str]:
    environ = os.environ | {"OUTRIDER_FAIL": fail, "OUTRIDER_FAIL_LOG": str(log or "")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(fail: str, log: Path | None = None) -> tuple[int, str, str]:
    with start(fail, log) as process:
        said, complained = process.communicate(timeout=200)
        return process.returncode, said, complained


@pytest.mark.parametrize("environ", [{}, {"OUTRIDER_FAIL": "", "OUTRIDER_FAIL_LOG": ""}])
def test_without_a_wish_nothing_is_armed(environ: dict[str, str]) -> None:
    load(environ)
    assert failpoint._armed is None
    hit("take.sent")


def test_every_hit_or_the_nth_only() -> None:
    arm("take.sent:raise, take.done:raise:2")
    for _ in range(2):
        with pytest.raises(FailPoint, match=r"^take\.sent$"):
            hit("take.sent")
    hit("take.done")
    with pytest.raises(FailPoint, match=r"^take\.done$"):
        hit("take.done")
    hit("take.done")
    hit("commit.before")


def test_one_point_may_fail_at_several_hits() -> None:
    arm("commit.after:raise:1,commit.after:raise:3")
    failed = []
    for number in (1, 2, 3, 4):
        try:
            hit("commit.after")
        except FailPoint:
            failed.append(number)
    assert failed == [1, 3]


def test_the_nth_hit_is_found_once_among_threads() -> None:
    arm("handle.before:raise:50")
    failed: list[str] = []

    def handle() -> None:
        for _ in range(25):
            try:
                hit("handle.before")
            except FailPoint as error:
                failed.append(str(error))

    threads = [threading.Thread(target=handle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == ["handle.before"]


@pytest.mark.parametrize(("action", "seconds"), [("sleep", 1.0), ("sleep=0.25", 0.25), ("sleep=0", 0.0)])
def test_sleep(monkeypatch: pytest.MonkeyPatch, action: str, seconds: float) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    arm(f"rollback.after:{action}")
    hit("rollback.after")
    assert slept == [seconds]


def test_exit_at_the_second_hit() -> None:
    assert run("take.sent:exit:2") == (EXIT_CODE, "1\n2\n", "")


def test_kill() -> None:
    assert run("take.sent:kill") == (-signal.SIGKILL, "1\n", "")


@pytest.mark.verify
def test_stop_and_go_on() -> None:
    with start("take.sent:stop:3") as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=200)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "1\n2\n3\nend\n")


@pytest.mark.verify
def test_a_wrong_wish_stops_the_process_at_its_start() -> None:
    code, said, complained = run("take.never:exit")
    assert (code, said) == (1, "")
    assert "ConfigError: OUTRIDER_FAIL: there is no fail point 'take.never'" in complained


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("take.never:exit", r"no fail point 'take.never' in 'take.never:exit'. There are: take.sent \(before the take"),
        ("take.sent:raise,", r"no fail point '' in ''"),
        ("take.sent", r"no action '' in 'take.sent'. There are: exit, kill, stop, raise, sleep"),
        ("take.sent:explode", r"no action 'explode'"),
        ("take.sent:exit=3", r"no action 'exit=3'"),
        ("take.sent:sleep=long", r"'long' in 'take.sent:sleep=long' is not a number of seconds"),
        ("take.sent:sleep=nan", r"'nan' .* is not a number of seconds"),
        ("take.sent:sleep=-1", r"'-1' .* is not a number of seconds"),
        ("take.sent:exit:0", r"'0' in 'take.sent:exit:0' is not the number of a hit"),
        ("take.sent:exit:two", r"'two' .* is not the number of a hit"),
    ],
)
def test_a_wrong_wish_is_refused_and_the_one_before_stays(text: str, message: str) -> None:
    arm("take.done:raise")
    with pytest.raises(ConfigError, match=message):
        arm(text)
    with pytest.raises(FailPoint):
        hit("take.done")


def test_every_known_point_is_named_in_the_refusal() -> None:
    with pytest.raises(ConfigError) as refused:
        arm("nothing:exit")
    assert all(name in str(refused.value) for name in POINTS)


def test_a_point_that_is_not_declared() -> None:
    arm("take.sent:raise")
    with pytest.raises(KeyError, match=r"take\.never"):
        hit("take.never")


def test_the_log_holds_every_hit_armed_or_not(tmp_path: Path) -> None:
    log = tmp_path / "hits"
    log.write_text("take.done\n")
    load({"OUTRIDER_FAIL_LOG": str(log)})
    hit("commit.before")
    load({"OUTRIDER_FAIL_LOG": str(log), "OUTRIDER_FAIL": "commit.after:raise:2"})
    hit("commit.after")
    with pytest.raises(FailPoint):
        hit("commit.after")
    hit("handle.before")
    names = ["take.done", "commit.before", "commit.after", "commit.after", "handle.before"]
    assert log.read_text().splitlines() == names


@pytest.mark.verify
def test_the_log_holds_the_hit_that_killed(tmp_path: Path) -> None:
    log = tmp_path / "hits"
    assert run("take.sent:kill:2", log)[0] == -signal.SIGKILL
    assert log.read_text() == "take.sent\ntake.sent\n"


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"OUTRIDER_FAIL_LOG='.*hits' cannot be written: No such file or directory"):
        load({"OUTRIDER_FAIL_LOG": str(tmp_path / "nowhere" / "hits")})
