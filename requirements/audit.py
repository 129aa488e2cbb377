"""Known vulnerabilities of what is pinned: ends with 1 when there are any. When nobody can be asked, it says so.

The pins hold everything that `pip install outrider[...]` pulls, with every extra, and what development needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).with_name("dev.txt")
PATIENCE = 60


def ask() -> list[dict[str, Any]]:
    """One entry per package; none when the service does not answer."""
    command = [
        sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--require-hashes", "--disable-pip",
        "--progress-spinner", "off", "--timeout", "5", "--format", "json",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []
    return found


def main() -> int:
    found = ask()
    asked = [each for each in found if "vulns" in each]
    hurt = [(each, vuln) for each in asked for vuln in each["vulns"]]
    if not asked:
        print("    the advisories cannot be reached from here: nothing was audited")
    elif len(asked) < len(found):
        print(f"    {len(asked)} of {len(found)} packages were audited; the others are unknown to the service")
    for each, vuln in hurt:
        fixed = ", ".join(vuln["fix_versions"]) or "no version"
        print(f"    {each['name']} {each['version']}: {vuln['id']}, fixed in {fixed}")
    return 1 if hurt else 0


if __name__ == "__main__":
    sys.exit(main())
