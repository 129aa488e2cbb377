"""docs/observability.md says what the code does: its tables are compared with signals, metrics, log lines and spans."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.observe.test_log import FIELDS
from tests.observe.test_ops import rules

from outrider import signals
from outrider.observe import log, log_lines
from outrider.observe.vocabulary import METRICS, STATE

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/observability.md").read_text()


def table(heading: str) -> list[str]:
    """The rows of the first table under a heading."""
    section = PAGE.partition(f"\n{heading}\n")[2]
    return [line for line in re.split(r"\n#+ ", section)[0].splitlines() if line.startswith("| `")]


def signal_rows() -> list[str]:
    rows = []
    kinds = [each for each in vars(signals).values() if isinstance(each, type) and issubclass(each, signals.Signal)]
    for kind in kinds[1:]:
        fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(kind)) or "none"
        rows.append(f"| `{kind.__name__}` | {' '.join((kind.__doc__ or '').split())} | {fields} |")
    return rows


def metric_rows() -> list[str]:
    rows = []
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels) or "none"
        rows.append(f"| `{each.exposed}` | {each.kind} | {labels} | {each.help} |")
    return rows


def test_the_signals() -> None:
    assert table("## Signals") == signal_rows()


def test_the_metrics() -> None:
    assert table("## Metrics") == metric_rows()
    seen = re.search(r"reads these from the database every ten seconds:\s(.*?)\.\n", PAGE, re.S)
    assert seen is not None
    assert re.findall(r"`(\w+)`", seen.group(1)) == [each.name for each in STATE]


def test_the_log_lines() -> None:
    source = Path(log.__file__).read_text() + Path(log_lines.__file__).read_text()
    calls = r"_lines\.\w+\(|_unbound\.\w+\(|_say_after\(\s*[\w.]+,|say\(|_lines\.warning\)\(|logging\.[A-Z]+,"
    written = re.findall(rf'(?:{calls})\s*"(\w+)"', source)
    named = [name for row in table("### Lines") for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert set(named) == set(written)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("line", sorted(FIELDS))
def test_the_fields_of_log_lines(line: str) -> None:
    explained = {name for row in table("### Fields") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    [row] = [row for row in table("### Lines") if f"`{line.removesuffix(' (job)')}`" in row.split("|")[1]]
    assert FIELDS[line] - explained - set(re.findall(r"`(\w+)`", row)) == set()


def test_the_attributes_of_spans() -> None:
    source = (ROOT / "src/outrider/trace.py").read_text()
    made = re.findall(r'"((?:messaging|outrider|error|exception)\.[\w.]+)"', source)
    named = [name for row in table("### Attributes") for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    assert sorted(named) == sorted({name for name in made if not name.startswith("exception")})


def test_the_alerts() -> None:
    named = dict(re.findall(r"^\| `(Outrider\w+)` \| (\w+) \|", PAGE, re.M))
    assert named == {rule["alert"]: rule["severity"] for rule in rules()}
