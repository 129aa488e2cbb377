"""A release as its processes load it: OUTRIDER_GENERATION=41 outrider worker --app examples.worlds_platform.service:atlas"""

from __future__ import annotations

import os

from .composition import compose

platform = compose(os.environ["OUTRIDER_DSN"], generation=int(os.environ["OUTRIDER_GENERATION"]))
worlds, atlas = platform.worlds, platform.atlas
