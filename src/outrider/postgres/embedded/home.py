"""Chooses the home folder of a server and prepares it. Changes only that folder, and refuses one that holds other files."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import EmbeddedError
from outrider.postgres.embedded.account import VARIABLE, Account, owner_name

SOCKET = ".s.PGSQL.5432"
SOCKET_LIMIT = 103
PREFIX = "outrider-pg-"
TEMPORARY_PREFIX = "outrider-tmp-"
PROJECT_FOLDER = ".outrider"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerHome:
    """`moved` says why this is not the folder that was asked for."""

    folder: Path
    asked: Path
    moved: str | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"


def settle(asked: Path, account: Account) -> ServerHome:
    """The requested folder, if the server's user can reach it and its socket path is short enough; else one in /var/tmp."""
    obstacle = find_obstacle(asked, account)
    if obstacle is None:
        try:
            claim(asked, account)
            return ServerHome(asked, asked)
        except OSError as error:
            obstacle = f"{asked} cannot be given to {account.name} ({error.strerror})"
    digest = hashlib.sha256(os.fsencode(asked)).hexdigest()[:12]
    folder = shared_folder() / f"{PREFIX}{account.uid}-{digest}"
    try:
        claim(folder, account)
    except OSError as error:
        raise EmbeddedError(
            f"{obstacle}, and {folder} cannot be used either ({error}); choose another folder."
        ) from error
    log.info("The embedded Postgres for %s lives in %s: %s", asked, folder, obstacle)
    leave_note(asked, folder)
    return ServerHome(folder, asked, obstacle)


def settle_temporary(account: Account) -> ServerHome:
    """A new folder that the server's user can remove after the server has stopped."""
    for parent in dict.fromkeys((Path(tempfile.gettempdir()).resolve(), shared_folder())):
        if account.may(parent, "x", "w") and socket_obstacle(parent / (TEMPORARY_PREFIX + "x" * 8)) is None:
            folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent))
            account.own(folder)
            return ServerHome(folder, folder)
    raise EmbeddedError(
        f"{account.name} cannot write to {tempfile.gettempdir()}; set TMPDIR to a short, public folder."
    )


def shared_folder() -> Path:
    folder = Path("/var/tmp")  # noqa: S108 (the owner of what is found there is checked)
    return folder if folder.is_dir() else Path(tempfile.gettempdir()).resolve()


def find_obstacle(folder: Path, account: Account) -> str | None:
    obstacle = socket_obstacle(folder)
    if obstacle:
        return obstacle
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder.parent} cannot be created ({error.strerror})"
    if folder.parent.name == PROJECT_FOLDER and not (ignored := folder.parent / ".gitignore").exists():
        with contextlib.suppress(OSError):
            ignored.write_text("*\n")
    return None if account.may(folder.parent, "x") else f"{account.name} cannot reach {folder.parent}"


def socket_obstacle(folder: Path) -> str | None:
    length = len(os.fsencode(folder / SOCKET))
    if length > SOCKET_LIMIT:
        return f"its socket path would be {length} bytes long and the limit is {SOCKET_LIMIT}"
    # libpq reads a comma in `host` as a list, postmaster.pid is read line by line, and initdb puts the path of the copied
    # programs between double quotes for the shell.
    hostile = sorted(set(str(folder)) & set(',\n"$`\\'))
    return f"its path contains {', '.join(map(repr, hostile))}" if hostile else None


def claim(folder: Path, account: Account) -> None:
    """Makes the folder private to the server's user. Refuses one that has another owner or holds other files."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {account.uid, os.geteuid()}:
        owner = owner_name(found.st_uid)
        raise EmbeddedError(
            f"{folder} belongs to {owner} and the server would run as {account.name}; remove it, choose another "
            f"folder, or run as its owner (as root: {VARIABLE}={owner})."
        )
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not os.path.samestat(found, os.fstat(handle)):
            raise EmbeddedError(f"{folder} was replaced while it was looked at; look at it and try again.")
        names = set(os.listdir(handle)) - {"location"}  # noqa: PTH208 (the folder that is open, not its path)
        if names and "start.lock" not in names:
            raise EmbeddedError(f"{folder} holds files that are not Outrider's; choose an empty or a new folder.")
        if found.st_uid != account.uid:
            os.fchown(handle, account.uid, account.gid)
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def leave_note(asked: Path, folder: Path) -> None:
    try:
        asked.mkdir(parents=True, exist_ok=True)
        if {path.name for path in asked.iterdir()} <= {"location"}:
            (asked / "location").write_text(f"{folder}\n")
    except OSError as error:
        log.info("The location of the embedded Postgres could not be noted in %s: %s", asked, error)
