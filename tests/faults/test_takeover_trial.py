"""Old systems are taken over under load, each command killed at one point after the other: nothing is lost or doubled.

`python -m tests.faults.takeover_trial` prints the table of docs/reliability.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.brokers import RedisServer
from tests.faults.takeover_trial import JobsTrial, OutboxTrial, StreamTrial, Trial, TrialResult
from tests.preloaded import Preloaded
from tests.relay.conftest import redis_server

__all__ = ["redis_server"]

pytestmark = [pytest.mark.verify, pytest.mark.timeout(300)]


@pytest.fixture
def stride(long: bool) -> int:
    """At length: every point."""
    return 1 if long else 7


def judged(trial: Trial, *killed: str) -> None:
    result: TrialResult = trial.play()
    print(result.line())
    assert result.exact, result
    assert result.kills.keys() >= set(killed)


VERBS = ("plan", "start", "abort", "cutover", "finish")


@pytest.mark.parametrize("kind", [OutboxTrial, JobsTrial])
def test_a_table_is_taken_over(
    kind: Any, empty_database: str, tmp_path: Path, preloaded: Preloaded, stride: int
) -> None:
    """Takes 15 s: each command is started until it has survived."""
    judged(kind(empty_database, tmp_path, preloaded, stride=stride), *VERBS)


def test_a_stream_is_taken_over(
    empty_database: str, tmp_path: Path, preloaded: Preloaded, stride: int, redis_server: RedisServer
) -> None:
    """Takes 10 s: each command is started until it has survived."""
    trial = StreamTrial(empty_database, tmp_path, preloaded, stride=stride, url=redis_server.url)
    judged(trial, *VERBS, "relay adopt")
