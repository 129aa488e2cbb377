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

PLATFORMS = {
    "Linux on arm64": ("manylinux2014_aarch64", "manylinux_2_28_aarch64"),
    "macOS on arm64": ("macosx_11_0_arm64", "macosx_14_0_arm64"),
}


@pytest.mark.parametrize("version", ["3.11", "3.14"])
@pytest.mark.parametrize("platform", PLATFORMS)
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
