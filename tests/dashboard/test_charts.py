"""Charts of the first page: a short history fills them, and their captions agree with the figures above."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from operator import attrgetter

import psycopg
import pytest
from tests.dashboard.conftest import Serve, log_in

from outrider.dashboard import history
from outrider.dashboard.charts import WIDTH, bars
from outrider.dashboard.history import History
from outrider.postgres.admin.activity import Sample

NOW = datetime(2026, 11, 18, 10, tzinfo=UTC)


def sampled(*ages: float) -> History:
    """Samples of so many seconds ago, with 10 events a second."""
    found = History()
    for age in ages:
        count = int(100_000 - 10 * age)
        found.add(Sample(NOW - timedelta(seconds=age), count, age, 0, 0, count // 2, count // 5))
    return found


def places(chart: str) -> list[tuple[float, float]]:
    return [
        (float(x), float(wide)) for x, wide in re.findall(r'class="hit" x="([\d.]+)" y="0" width="([\d.]+)"', chart)
    ]


@pytest.mark.parametrize("ages", [range(100, -1, -10), range(3600, -1, -60), range(1500, -1, -10), [0]])
def test_a_history_fills_its_chart(ages: list[int]) -> None:
    found = sampled(*ages)
    chart = bars(found.highest(attrgetter("waiting")), str, "Wait", 7.0)
    drawn = places(chart)
    assert 1 <= len(drawn) <= history.STEPS + 1
    assert drawn[0][0] == 0
    assert sum(drawn[-1]) == pytest.approx(WIDTH, abs=0.2)
    assert all(one[0] + one[1] == pytest.approx(two[0], abs=0.2) for one, two in itertools.pairwise(drawn))
    assert {each.value for each in found.published()} <= {None, 10.0}
    assert {each.value for each in found.handled()} <= {None, 5.0}
    assert {each.value for each in found.failed()} <= {None, 2.0}
    assert [each.value for each in found.published()][1:] == [10.0] * (len(drawn) - 1)


def test_the_axis_begins_at_the_first_sample_within_an_hour() -> None:
    assert "<span>110 s ago</span>" in bars(sampled(*range(100, -1, -10)).published(), str, "x", 1)
    assert "<span>60 min ago</span>" in bars(sampled(*range(5000, -1, -60)).published(), str, "x", 1)


def test_a_caption_agrees_with_the_figure_above_it() -> None:
    """The figure is of the last second, the bars are of the last ten."""
    chart = bars(sampled(20, 10).highest(attrgetter("waiting")), "{:g} s".format, "Wait", 34.0)
    assert "<span>highest 34 s</span><span>now 34 s</span>" in chart
    assert "now –" in bars([], str, "Wait", None)


def test_what_is_not_known_is_not_drawn() -> None:
    points = sampled(10).handled()
    assert [each.value for each in points] == [None]
    assert 'class="bar"' not in bars(points, str, "x", None)
    assert [each.value for each in History().handled()] == []


def test_reports_that_come_unevenly_make_an_even_rate() -> None:
    """Between two samples of 10 s there may be two reports of a worker, or none."""
    found = History()
    for place, reports in enumerate((0, 1, 2, 3, 5, 5, 7, 8, 8)):
        found.add(Sample(NOW + timedelta(seconds=10 * place), 0, 0, 0, 0, 100 * reports))
    assert all(each.value is not None and 6 < each.value < 15 for each in found.handled()[1:])
    found.add(Sample(NOW + timedelta(seconds=90), 0, 0, 0, 0, 0))
    assert found.handled()[-1].value is None, "a worker has signed off: what it handled is not known"


async def test_a_subscription_that_is_up_to_date_has_no_lag(serve: Serve, dsn: str) -> None:
    """Its cursor stays where it is when events come that it does not take."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.idle', 'reader', 'dash', array['dash.rare'])")
        conn.execute("select outrider.publish('dash.other', '{}') from generate_series(1, 692)")
    async with serve() as client:
        await log_in(client)
        shown = (await client.get("/")).text
        [lag] = re.findall(r'>dash\.idle</a>.*?data-label="Lag">(.*?)</td>', shown, re.DOTALL)
    assert lag == '<span class="zero" title="It is up to date.">–</span>'
