"""Every block of the README, of the pages and of the benchmarks has a test that runs it, or a reason why none does.

A new block makes this fail: let a test run it, and count it here.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.docs.test_docs import ROOT

SHELL = "tests/docs/test_shell.py"
BLOCKS = {
    "README.md": {"python 1": "tests/docs/test_docs.py", "sh 1": "tests/release/test_wheel.py"},
    "docs/adopting.md": {"console 7": "tests/docs/test_adopting.py", "sh 2": "tests/docs/test_adopting.py"},
    "docs/alembic.md": {"console 1": "tests/docs/test_adopting.py", "sh 1": "tests/docs/test_adopting.py"},
    "docs/contracts.md": {"console 27": "tests/docs/test_contracts.py", "py 25": "tests/docs/test_contracts.py"},
    "docs/dashboard.md": {"python 2": "tests/dashboard/test_docs.py", "sh 2": SHELL},
    "docs/django.md": {"python 9": "tests/examples/test_django_shop.py"},
    "docs/fastapi.md": {"python 5": "tests/examples/test_fastapi_shop.py", "sh 1": SHELL},
    "docs/flask.md": {"python 3": "tests/examples/test_flask_shop.py", "sh 2": SHELL},
    "docs/guide.md": {"python 11": "tests/docs/test_docs.py", " 1": "tests/docs/test_docs.py", "sh 5": SHELL},
    "docs/index.md": {"sh 1": SHELL},
    "docs/inbox.md": dict.fromkeys(["console 2", "python 5", "sql 1"], "tests/docs/test_relay_and_inbox.py"),
    "docs/install.md": {"sh 2": SHELL},
    "docs/integrations.md": {"python 4": "tests/docs/test_docs.py"},
    "docs/jobs.md": {
        **dict.fromkeys(["console 3", "mermaid 1", "python 8", "sql 1"], "tests/docs/test_jobs.py"),
        "sh 2": SHELL,
    },
    "docs/managed-postgres.md": {"sql 1": "tests/docs/test_capacity.py"},
    "docs/monitoring.md": dict.fromkeys(["console 9", "py 1", "sh 3"], "tests/docs/test_monitoring.py"),
    "docs/moving-from-celery.md": dict.fromkeys(["console 1", "py 3"], "tests/docs/test_moving.py"),
    "docs/moving-from-pgqueuer.md": dict.fromkeys(["console 3", "py 3"], "tests/docs/test_moving.py"),
    "docs/moving-from-procrastinate.md": dict.fromkeys(["console 3", "py 3"], "tests/docs/test_moving.py"),
    "docs/observability.md": {"py 3": SHELL, "sh 2": SHELL},
    "docs/pgbouncer.md": {"sh 1": SHELL},
    "docs/recovery.md": dict.fromkeys(["console 9", "py 2", "sql 1"], "tests/docs/test_recovery.py"),
    "docs/relay.md": dict.fromkeys(["console 1", "json 3", "python 7"], "tests/docs/test_relay_and_inbox.py"),
    "docs/roles.md": {"py 1": SHELL, "sh 2": SHELL, "sql 2": SHELL},
    "docs/rollout.md": {"console 1": SHELL, "sh 5": SHELL},
    "docs/rollups.md": {
        **dict.fromkeys(["console 8", "python 2", "sh 1", "sql 1"], "tests/docs/test_rollups.py"),
        "py 2": SHELL,
    },
    "docs/runbook.md": {"sh 1": SHELL, "sql 3": SHELL},
    "docs/schedules.md": {"python 1": "tests/worker/jobs/test_schedule.py", "sh 1": SHELL},
    "docs/takeover.md": dict.fromkeys(["console 3", "py 2"], "tests/docs/test_takeover.py"),
    "docs/tenants.md": {**dict.fromkeys(["python 1", "sql 3"], "tests/docs/test_tenants.py"), "sh 1": SHELL},
    "docs/testing.md": {"py 3": "tests/testing/test_guide.py"},
    "docs/troubleshooting.md": {"sh 1": SHELL},
    "docs/tutorial.md": dict.fromkeys(["console 5", "py 3", "sh 2", "text 1"], "tests/docs/test_tutorial.py"),
    "docs/upkeep.md": {"sh 1": "tests/upkeep/test_segments.py"},
}
"""By page: the language, how many blocks of it, and the test that reads them from the page."""
NOT_RUN = {
    "docs/architecture.md": {
        " 3": "two drawings, and the list of modules, which tests/docs/test_architecture.py compares"
    },
    "docs/capacity.md": {" 1": "a setting for two servers; tests/faults/test_failover.py has such a DSN"},
    "docs/django.md": {"sh 2": "tests/integrations/test_django_worker.py starts manage.py of a project of its own"},
    "docs/observability.md": {" 1": "two lines of a log; tests/observe/test_log.py has their fields"},
    "docs/relay.md": {" 1": "a drawing"},
    "docs/roles.md": {" 1": "a finding; tests/doctor/test_owned.py has its words"},
    "docs/runbook.md": {" 1": "PromQL; an alert of ops/, whose rules tests/observe/test_ops.py parses"},
    "docs/upkeep.md": {
        " 2": "a line of a crontab; the commands of tests/upkeep/test_segments.py, for a segment that is not there"
    },
}


def found(page: Path) -> set[str]:
    fences = re.findall(r"^```(\w*).*$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    opened = Counter(language for number, language in enumerate(fences) if number % 2 == 0)
    return {f"{language} {count}" for language, count in opened.items()}


@pytest.mark.parametrize(
    "page",
    ["README.md", "benchmarks/README.md", *(f"docs/{each.name}" for each in sorted((ROOT / "docs").glob("*.md")))],
)
def test_every_block_is_run(page: str) -> None:
    assert found(ROOT / page) == BLOCKS.get(page, {}).keys() | NOT_RUN.get(page, {}).keys()
    for runner in BLOCKS.get(page, {}).values():
        stem = Path(page).stem
        assert any(name in (ROOT / runner).read_text() for name in (stem, stem.rpartition("-")[0] or stem)), runner
    for reason in NOT_RUN.get(page, {}).values():
        for named in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / named).exists()
