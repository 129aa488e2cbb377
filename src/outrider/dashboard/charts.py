"""Charts as inline SVG, without styles or scripts of their own: the page's style sheet colours them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from outrider.dashboard.history import Point
from outrider.dashboard.text import exact, span

WIDTH, HEIGHT = 300, 64
BAR = Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"/>')
HIT = Markup('<rect class="hit" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title></rect>')


def bars(points: Sequence[Point], told: Callable[[float], str], label: str, now: float | None) -> Markup:
    """One bar per point; where the value is not known there is none. Hovering shows the value and its time.

    `now` may be newer than the last point.
    """
    most = max((each for each in (now, *(point.value for point in points)) if each is not None), default=0)
    length = (points[-1].at - points[0].since) if points else None
    drawn = []
    for each in points:
        assert length
        x, wide = ((when / length) * WIDTH for when in (each.since - points[0].since, each.at - each.since))
        if each.value:
            height = max(1.5, each.value / most * (HEIGHT - 4))
            drawn.append(BAR.format(f"{x:.1f}", f"{HEIGHT - height:.1f}", f"{max(0.5, wide - 1):.1f}", f"{height:.1f}"))
        value = "not known" if each.value is None else told(each.value)
        drawn.append(HIT.format(f"{x:.1f}", f"{wide:.1f}", HEIGHT, exact(each.at)[:19], value))
    base = Markup('<line class="base" x1="0" y1="{}" x2="{}" y2="{}"/>').format(HEIGHT - 0.5, WIDTH, HEIGHT - 0.5)
    begun, current = f"{span(length)} ago", "–" if now is None else told(now)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
        '<p class="scale"><span>{}</span><span>highest {}</span><span>now {}</span></p>'
    ).format(
        WIDTH, HEIGHT, f"{label}, since {begun}: now {current}, at most {told(most)}", base, Markup("").join(drawn),
        begun, told(most), current,
    )  # fmt: skip
