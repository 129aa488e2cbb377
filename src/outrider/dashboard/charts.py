"""Charts as inline SVG, without styles or scripts of their own: the page's style sheet colours them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from outrider.dashboard.history import Point
from outrider.dashboard.text import exact

WIDTH, HEIGHT = 300, 64
BAR = Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"/>')
HIT = Markup('<rect class="hit" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title></rect>')


def bars(points: Sequence[Point], told: Callable[[float], str], label: str) -> Markup:
    """One bar per point; where the value is not known there is none. Hovering shows the value and its time."""
    most = max((each.value or 0 for each in points), default=0) or 1
    step = WIDTH / max(1, len(points))
    drawn = []
    for place, each in enumerate(points):
        x = place * step
        if each.value:
            height = max(1.5, each.value / most * (HEIGHT - 4))
            drawn.append(BAR.format(f"{x:.1f}", f"{HEIGHT - height:.1f}", f"{step - 1:.1f}", f"{height:.1f}"))
        value = "not known" if each.value is None else told(each.value)
        drawn.append(HIT.format(f"{x:.1f}", f"{step:.1f}", HEIGHT, exact(each.at)[:16], value))
    base = Markup('<line class="base" x1="0" y1="{}" x2="{}" y2="{}"/>').format(HEIGHT - 0.5, WIDTH, HEIGHT - 0.5)
    highest = told(most) if any(each.value for each in points) else told(0)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
        '<p class="scale"><span>1 h ago</span><span>highest {}</span><span>now</span></p>'
    ).format(WIDTH, HEIGHT, f"{label}, last hour, at most {highest}", base, Markup("").join(drawn), highest)
