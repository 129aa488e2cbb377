"""Every package that Outrider needs, with every extra, has a wheel for the platforms that docs/versions.md names.

It asks the package index, and downloads next to nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.release.building import loaded

pytestmark = pytest.mark.verify

INTEL = (*(f"macosx_10_{n}_x86_64" for n in range(9, 17)), *(f"macosx_{n}_0_x86_64" for n in range(11, 15)))
PLATFORMS = {
    "Linux on x86-64": ("manylinux2014_x86_64", "manylinux_2_28_x86_64"),
    "Linux on arm64": ("manylinux2014_aarch64", "manylinux_2_28_aarch64"),
    "macOS on arm64": ("macosx_11_0_arm64", "macosx_14_0_arm64"),
    "macOS on x86-64": INTEL,
    "Windows on x86-64": ("win_amd64",),
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EVERY_TIME = {(platform, version) for platform in list(PLATFORMS)[:3] for version in (PYTHONS[0], PYTHONS[-1])}
"""The others, which make faults asks for, stand between these, or are not supported."""


@pytest.mark.parametrize(
    ("platform", "version"),
    [
        pytest.param(platform, version, marks=() if (platform, version) in EVERY_TIME else pytest.mark.long)
        for platform in PLATFORMS
        for version in PYTHONS
    ],
)
def test_there_are_wheels(platform: str, version: str, tmp_path: Path) -> None:
    sbom = loaded("sbom")
    pins = tmp_path / "pins.txt"
    pins.write_text(re.sub(r" --hash=\S+", "", sbom.requirements(sbom.every_extra())))
    place = [part for name in PLATFORMS[platform] for part in ("--platform", name)]
    command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, "--target", tmp_path, "--python-version", version, *place, "-r", pins],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
