"""Snapshots as files, `<type>.v<version>.json` in a folder: read with every error reported, written atomically."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from outrider.contract.document import Contract
from outrider.contract.inputs import Snapshot, Unreadable
from outrider.errors import ConfigError

_NAME = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)\.v([1-9][0-9]{0,9})\.json")


@dataclass
class Found:
    kept: dict[tuple[str, int], Snapshot] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)


def path_of(folder: Path, contract: Contract) -> Path:
    return folder / f"{contract.type}.v{contract.version}.json"


def read_all(folder: Path, *, ours: bool) -> Found:
    """Every snapshot in the folder; other files are ignored. A folder of ours may be missing."""
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"{folder} is not a folder: snapshots need a folder of their own")
        if not ours:
            raise ConfigError(f"--against names {folder}, which does not exist: name a folder with snapshots")
        return Found()
    found = Found()
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from None
    for file in entries:
        if named := _NAME.fullmatch(file.name):
            key = (named[1], int(named[2]))
            try:
                found.kept[key] = Snapshot(_read(file, key), str(file))
            except ValueError as error:
                found.unreadable.append(Unreadable(*key, str(file), str(error), ours))
    return found


def read_others(folders: Iterable[Path]) -> Found:
    """Snapshots of other producers. Two folders may hold the same snapshot, but not two versions of it."""
    found = Found()
    for folder in folders:
        one = read_all(folder, ours=False)
        for key in one.kept.keys() & found.kept.keys():
            if one.kept[key].contract.text != found.kept[key].contract.text:
                raise ConfigError(
                    f"{found.kept[key].where} and {one.kept[key].where} differ under the same name: "
                    "name the folder of its producer alone with --against"
                )
        found.kept = one.kept | found.kept
        found.unreadable += one.unreadable
    return found


def _read(file: Path, key: tuple[str, int]) -> Contract:
    try:
        contract = Contract.read(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    if (contract.type, contract.version) != key:
        raise ValueError(f"it is the snapshot of {contract}, under a wrong name")
    return contract


def write(file: Path, text: str) -> None:
    """Atomic: a reader sees the old text or the new one."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        Path(temporary).replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
