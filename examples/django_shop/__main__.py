"""python -m examples.django_shop [DSN]: the whole story, without a DSN on the embedded Postgres in .outrider/pg."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from outrider.postgres.embedded import Embedded

MANAGE = [sys.executable, "-u", str(Path(__file__).with_name("manage.py"))]


def manage(*arguments: str) -> None:
    print(f"$ manage.py {' '.join(arguments)}", flush=True)
    subprocess.run([*MANAGE, *arguments], check=True)


@contextmanager
def running(*arguments: str) -> Iterator[IO[str]]:
    """A process of the shop, until SIGTERM; what it says."""
    print(f"$ manage.py {' '.join(arguments)} &", flush=True)
    process = subprocess.Popen([*MANAGE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        if process.returncode not in (0, -signal.SIGTERM):
            print(rest)
        print(f"manage.py {arguments[0]} ended with code {process.returncode}")


def waited_for(said: IO[str], pattern: str) -> str:
    """What it says about that, as soon as it does."""
    for line in said:
        if found := re.search(pattern, line):
            return found[0]
    raise SystemExit(f"it ended before it said {pattern!r}")


def ask(url: str, body: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return json.load(refused)


def story() -> None:
    manage("migrate", "--verbosity", "0")
    manage("outrider", "migrate")
    with (
        running("runserver", "--noreload", "127.0.0.1:0") as server,
        running("outrider", "worker") as worker,
    ):
        shop = waited_for(server, r"http://127\.0\.0\.1:\d+")
        waited_for(worker, "event=worker_up")
        print("refused:", ask(f"{shop}/orders/", {"customer": "ada", "total": "5000"}))
        order = ask(f"{shop}/orders/", {"customer": "ada", "total": "9.90"})
        print("placed:", order)
        waited_for(worker, "handled=")
        print("invoiced:", ask(f"{shop}/orders/{order['id']}/"))


def main(dsn: str | None = None) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nobody leaves the two processes behind
    with ExitStack() as stack:
        if dsn is None:
            server = stack.enter_context(Embedded())
            server.ensure_database("django_shop")
            dsn = server.dsn("django_shop")
        os.environ["DATABASE_URL"] = dsn
        story()


if __name__ == "__main__":
    main(*sys.argv[1:2])
