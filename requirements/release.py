"""The release checklist: `make release-check` runs it on what `make dist` has built. Ends with 1 while something is open."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
AFTERWARDS = f"""
What no program can check:
  - .ci/run has passed on this commit, with every Python that pyproject.toml lists
  - make faults has passed since the last change of the cursor, of jobs or of relays
  - the changelog says what an operator must know: migrations, stops, rights
Then: git tag -s v{VERSION}, publish dist/*.whl and dist/*.tar.gz, attach dist/*.cdx.json to the release.
"""


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def sections(changelog: str) -> dict[str, str]:
    """What stands under each `## heading`, the newest first."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def wrong_changelog(changelog: str, version: str) -> Iterator[str]:
    found = sections(changelog)
    for heading, text in found.items():
        kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
        if kinds != sorted(kinds, key=lambda kind: KINDS.index(kind) if kind in KINDS else -1) or not {*kinds} <= {
            *KINDS
        }:
            yield f"the kinds under {heading!r} are {', '.join(kinds)}; they should be, in this order: {', '.join(KINDS)}"
    if next(iter(found), None) != "Unreleased":
        yield "the first section is not 'Unreleased'"
    elif found["Unreleased"].strip():
        yield f"there are changes under 'Unreleased': give them the heading '{version}, <date>'"
    if not any(re.fullmatch(rf"{re.escape(version)}, \d{{4}}-\d\d-\d\d", heading) for heading in found):
        yield f"there is no section '{version}, <date>'"


def wrong_repository() -> Iterator[str]:
    if changed := git("status", "--porcelain"):
        yield f"{len(changed.splitlines())} files are not committed"
    if git("tag", "--list", f"v{VERSION}"):
        yield f"the tag v{VERSION} exists: raise the version in pyproject.toml"


def wrong_metadata() -> Iterator[str]:
    if not PROJECT.get("urls"):
        yield "[project.urls] is missing: enter the addresses of the repository, the documentation and the changelog"
    if not re.search(r"https?://|mailto:", (ROOT / "SECURITY.md").read_text()):
        yield "SECURITY.md names no address: enter that of the private vulnerability report"


def wrong_dist(folder: Path) -> Iterator[str]:
    wheel = folder / f"outrider-{VERSION}-py3-none-any.whl"
    for file in (wheel, folder / f"outrider-{VERSION}.tar.gz", folder / f"outrider-{VERSION}.cdx.json"):
        if not file.exists():
            yield f"dist/{file.name} is missing: make dist"
    if wheel.exists():
        with zipfile.ZipFile(wheel) as opened:
            described = opened.read(f"outrider-{VERSION}.dist-info/METADATA").decode()
        if relative := re.findall(r"\]\((?!https?://|#)[^)]*\)", described):
            yield f"the description on the package index has relative links: {', '.join(relative[:3])}"


def main() -> int:
    checks = {
        "the changelog": wrong_changelog((ROOT / "CHANGELOG.md").read_text(), VERSION),
        "the repository": wrong_repository(),
        "the metadata": wrong_metadata(),
        "what was built": wrong_dist(ROOT / "dist"),
    }
    found = {subject: list(wrong) for subject, wrong in checks.items()}
    print(f"outrider {VERSION}")
    for subject, wrong in found.items():
        print(f"  {subject}: {'open' if wrong else 'ok'}")
        for each in wrong:
            print(f"    - {each}")
    print(AFTERWARDS)
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
