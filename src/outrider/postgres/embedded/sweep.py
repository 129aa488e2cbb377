"""Removes temporary servers whose user and supervisor were both killed. Touches only folders of the server's own user
in which every lock is free."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

from outrider.postgres.embedded import supervise
from outrider.postgres.embedded.account import Account
from outrider.postgres.embedded.home import TEMPORARY_PREFIX

SECONDS = 10.0


def sweep(own: Path, account: Account) -> None:
    for folder in own.parent.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder != own and not folder.is_symlink() and folder.stat().st_uid == account.uid:
                remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> None:
    """A starting process takes start.lock before it creates users.lock, so a folder that lacks either is left alone."""
    with contextlib.ExitStack() as locks:
        for name, operation in (
            ("start.lock", fcntl.LOCK_EX),
            ("users.lock", fcntl.LOCK_EX),
            ("supervisor.lock", fcntl.LOCK_SH),
        ):
            try:
                lock = supervise.open_lock(folder / name, create=False)
            except FileNotFoundError:
                if name == "supervisor.lock":
                    continue
                return
            locks.callback(os.close, lock)
            if not supervise.try_lock(lock, operation):
                return
        pid = supervise.postmaster(folder / "data")
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            deadline = time.monotonic() + SECONDS
            while supervise.postmaster(folder / "data") == pid and time.monotonic() < deadline:
                time.sleep(supervise.PAUSE)
        shutil.rmtree(folder, ignore_errors=True)
