"""Prints a software bill of materials (CycloneDX 1.6, JSON) of what `pip install outrider`, with every extra, brings.

Versions and hashes are those of dev.txt, with which releases are tested. Who needs whom is read from the installed packages,
for this Python and platform. The same commit and SOURCE_DATE_EPOCH give the same document.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).with_name("dev.txt")
NAME = "outrider"


def pins() -> dict[str, list[tuple[str, list[str]]]]:
    """The pinned requirements and their hashes by package. One package may have several, with markers."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for block in re.split(r"\n(?=\S)", PINS.read_text()):
        if "==" in block.partition("\n")[0]:
            pinned = block.partition(" \\")[0].strip()
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
            found.setdefault(canonicalize_name(Requirement(pinned).name), []).append((pinned, hashes))
    return found


def needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in (extras or {""})):
            yield wanted


def closure(extras: frozenset[str], *beside: str) -> dict[str, set[str]]:
    """Every package that Outrider with these extras, and the packages beside it, bring, with what each of them needs."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(NAME, extras), *((name, frozenset[str]()) for name in beside)]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        required = list(needs(name, wanted))
        found.setdefault(name, set()).update(canonicalize_name(each.name) for each in required)
        todo += [(canonicalize_name(each.name), frozenset(each.extras)) for each in required]
    return found


def every_extra() -> frozenset[str]:
    return frozenset(distribution(NAME).metadata.get_all("Provides-Extra") or ())


def reference(name: str) -> str:
    return f"pkg:pypi/{name}@{distribution(name).version}"


def component(name: str, *, required: bool) -> dict[str, Any]:
    version = distribution(name).version
    [hashes] = [hashes for pinned, hashes in pins()[name] if f"=={version}" in pinned.split(";")[0].strip()]
    licence = distribution(name).metadata.get("License-Expression")
    return {
        "type": "library",
        "bom-ref": reference(name),
        "name": name,
        "version": version,
        "purl": reference(name),
        "scope": "required" if required else "optional",
        **({"licenses": [{"expression": licence}]} if licence else {}),
        "externalReferences": [
            {
                "type": "distribution",
                "url": reference(name),
                "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
            }
        ],
    }


def document() -> dict[str, Any]:
    core, whole = closure(frozenset()), closure(every_extra())
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, reference(NAME) + PINS.read_text())}",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library",
                "bom-ref": reference(NAME),
                "name": NAME,
                "version": distribution(NAME).version,
                "purl": reference(NAME),
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": [component(name, required=name in core) for name in sorted(whole) if name != NAME],
        "dependencies": [
            {"ref": reference(name), "dependsOn": sorted(map(reference, needed))}
            for name, needed in sorted(whole.items())
        ],
    }


def requirements(extras: frozenset[str], *beside: str) -> str:
    """The pins of that closure, without Outrider itself, for pip's --require-hashes."""
    found = [pin for name in sorted(closure(extras, *beside).keys() - {NAME}) for pin in pins()[name]]
    return "".join(f"{pinned}{''.join(f' --hash=sha256:{each}' for each in hashes)}\n" for pinned, hashes in found)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(), indent=2) + "\n")
