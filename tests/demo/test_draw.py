"""What the demo draws fits the screen, also when its numbers have seven digits."""

from __future__ import annotations

from dataclasses import fields
from io import StringIO

import pytest
from rich.console import Console

from outrider.demo.draw import INTRODUCTION, MOST_NEWS, Activity, DemoScreen, Figures, News, line, next_steps, summary

BIG = 9_999_999
FIGURES = Figures(**dict.fromkeys((each.name for each in fields(Figures)), BIG))
ACTIVITY = Activity(**dict.fromkeys((each.name for each in fields(Activity)), BIG))
TROUBLE = f"cut the listening session {BIG}; its worker reconnects"
FAILURE = f"order {BIG} of stone: card declined, next attempt in 0.4 s"
LATE = f"order {BIG} of stone: committed late, invoiced after 2.9 s"


@pytest.fixture
def news() -> News:
    news = News()
    for _ in range(MOST_NEWS + 1):
        news.tell_trouble(TROUBLE)
        news.tell_failure(FAILURE)
        news.tell_late(LATE)
    return news


@pytest.mark.parametrize(("width", "height", "news_of_each"), [(80, 24, 1), (80, 40, 5), (120, 40, 5)])
def test_the_screen_fits(news: News, width: int, height: int, news_of_each: int) -> None:
    console = Console(file=StringIO(), width=width, height=height)
    screen = DemoScreen(FIGURES, ACTIVITY, news)
    drawn = ["".join(part.text for part in row) for row in console.render_lines(screen)]
    assert len(drawn) <= height
    assert {len(row) for row in drawn} == {width}
    text = "\n".join(drawn)
    assert "…" not in text
    for fault in FIGURES.faults:
        assert any(fault.name in row and f"{BIG:,}" in row and fault.meaning in row for row in drawn), fault
    for told in (TROUBLE, FAILURE, LATE):
        assert text.count(told) == news_of_each


def test_what_is_printed_fits_into_80_columns(news: News) -> None:
    right = Figures(orders=BIG, published=BIG, invoices=BIG, rewarded=BIG, receipts=BIG)
    for text in (
        INTRODUCTION,
        summary(right, ACTIVITY),
        next_steps("short", ".venv/bin/outrider"),
        line(right, news),
    ):
        assert max(map(len, text.splitlines())) <= 80, text
    assert "Nothing was lost" in summary(right, ACTIVITY)
