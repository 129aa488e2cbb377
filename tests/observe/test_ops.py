"""The Grafana board and the alert rules in ops/ ask for metrics that there are, with their labels; alerts are explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from outrider.observe.vocabulary import METRICS, Metric

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "ops/grafana/outrider.json"
ALERTS = ROOT / "ops/prometheus/alerts.yml"
OF_PROMETHEUS = {"job", "instance", "le"}
OWN_WORDS = {"histogram_quantile", "label_values", "max_over_time", "last_over_time"}

_RULE = re.compile(
    r"      - alert: (?P<alert>\w+)\n"
    r"        expr: (?P<expr>.+)\n"
    r"(?:        for: (?P<for>\d+[smh])\n)?"
    r"        labels:\n"
    r"          severity: (?P<severity>\w+)\n"
    r"        annotations:\n"
    r'          summary: "(?P<summary>[^"\\]+)"\n'
    r"          runbook: (?P<runbook>\S+)\n"
)


def exposed() -> dict[str, Metric]:
    """Every name that a query may use."""
    found: dict[str, Metric] = {}
    for each in METRICS:
        endings = ("_bucket", "_count", "_sum") if each.kind == "histogram" else ("",)
        found |= {f"{each.exposed}{ending}": each for ending in endings}
    return found


def rules() -> list[dict[str, str]]:
    """The file is YAML of one shape: what does not have it is found here."""
    head, _, rest = ALERTS.read_text().partition("    rules:\n")
    assert [line for line in head.splitlines() if not line.startswith("#")] == ["groups:", "  - name: outrider"]
    assert _RULE.sub("", rest) == ""
    return [found.groupdict() for found in _RULE.finditer(rest)]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text())
    return found


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    yield "the variable", board()["templating"]["list"][1]["query"]


def wrong_with(query: str) -> list[str]:
    """No PromQL; names that are no metrics; labels that none of the query's metrics has; a counter without a rate."""
    known, wrong = exposed(), []
    if not query.startswith("label_values("):  # Grafana's own
        try:
            promql_parser.parse(query.replace("$__rate_interval", "5m"))
        except ValueError as error:
            wrong.append(str(error))
    bare = re.sub(r'"[^"]*"', '""', query)
    names = re.findall(r"\b[a-z]\w*_\w+|\boutrider\w*", re.sub(r"\$\w+", "", bare))
    metrics = [known[name] for name in names if name in known]
    wrong += [name for name in names if name not in known and name not in OWN_WORDS]
    labels = {label for each in metrics for label in each.labels} | OF_PROMETHEUS
    for inside in re.findall(r"(?:by|without) \(([^)]+)\)", bare):
        wrong += [label for label in re.split(r",\s*", inside) if label not in labels]
    for inside in re.findall(r"\{([^}]*)\}", bare):
        wrong += [label for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside) if label not in labels]
    for name in names:
        ranged = re.search(rf"(?:rate|increase)\({name}(?:\{{[^}}]*\}})?\[", bare)
        first = re.search(rf"\b{name} unless last_over_time\({name}\[", bare)
        if name in known and known[name].kind != "gauge" and not (ranged or first or "label_values" in bare):
            wrong.append(f"{name} without a rate")
        if name in known and known[name].kind == "gauge" and ranged:
            wrong.append(f"the rate of the gauge {name}")
    if not metrics:
        wrong.append("no metric at all")
    return wrong


def test_the_queries_ask_for_what_there_is() -> None:
    assert [(title, wrong) for title, query in queries() if (wrong := wrong_with(query))] == []


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("max by (type) (outrider_dept)", ["outrider_dept", "type", "no metric at all"]),
        ("max by (topic) (outrider_depth)", ["topic"]),
        ('sum(rate(outrider_completed_total{state="x"}[5m]))', ["state"]),
        ("sum(outrider_relayed_total)", ["outrider_relayed_total without a rate"]),
        ("rate(outrider_depth[5m])", ["the rate of the gauge outrider_depth"]),
        ("sum(rate(outrider_published[5m]))", ["outrider_published", "no metric at all"]),
        ("max(outrider_depth", ["unclosed left parenthesis"]),
        ("deriv(outrider_depth)", ["expected type matrix in call to function 'deriv', got vector"]),
    ],
)
def test_what_would_be_found(query: str, wrong: list[str]) -> None:
    assert wrong_with(query) == wrong


def test_values_of_labels_are_ones_that_there_are() -> None:
    known = {"status": {"success", "failed", "dead"}, "result": {"renewed", "lost"}}
    for title, query in queries():
        for label, value in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"$]+)"', query):
            assert value in known[label], title


def test_every_alert_is_explained() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    anchors = {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in headings(runbook)}
    for rule in rules():
        dashed = re.sub(r"(?<!^)(?=[A-Z])", "-", rule["alert"]).lower()
        assert rule["runbook"] == f"docs/runbook.md#{dashed}"
        assert dashed in anchors, f"docs/runbook.md has no section for {rule['alert']}"


def headings(page: str) -> list[str]:
    return [line for line in re.sub(r"^```.*?^```", "", page, flags=re.S | re.M).splitlines() if line.startswith("#")]


def test_the_severities() -> None:
    """What the vocabulary calls a page is one."""
    found = rules()
    assert {rule["severity"] for rule in found} == {"page", "ticket"}
    paging = " ".join(rule["expr"] for rule in found if rule["severity"] == "page")
    assert [each.name for each in METRICS if "Severity: page" in each.help and each.exposed not in paging] == []


def test_every_metric_is_on_the_board() -> None:
    asked = " ".join(target["expr"] for panel in board()["panels"] for target in panel.get("targets", ()))
    assert [each.name for each in METRICS if each.exposed not in asked] == []


def test_a_single_number_is_of_now() -> None:
    """The last one of six hours may be of a worker that is gone."""
    for panel in board()["panels"]:
        if panel["type"] == "stat":
            assert [(each["instant"], each["range"]) for each in panel["targets"]] == [(True, False)], panel["title"]


def test_apps_are_kept_apart() -> None:
    """Two that are scraped may have the same names: production and staging have."""
    for title, query in queries():
        for inside in re.findall(r"\bby \(([^)]*)\)", query):
            assert "job" in inside.split(", "), title


def test_the_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not own & taken, panel["title"]
        taken |= own
