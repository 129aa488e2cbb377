"""One worker process of the shop: `python -m outrider.demo.worker DSN`. It runs until its standard input ends.

The demo holds the other end of that pipe, so the pipe also ends when the demo is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from outrider.demo.shop import open_shop
from outrider.errors import OutriderError
from outrider.worker.worker import Worker

GRACE = "5s"


async def work(dsn: str) -> None:
    loop = asyncio.get_running_loop()
    async with open_shop(dsn) as app:
        worker = app.worker(grace=GRACE)

        def leave() -> None:
            loop.remove_reader(sys.stdin)
            worker.stop()

        loop.add_reader(sys.stdin, leave)
        telling = loop.create_task(tell_ready(worker))
        try:
            await worker.run()
        finally:
            telling.cancel()


async def tell_ready(worker: Worker) -> None:
    await worker.ready.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main() -> None:
    # The demo shows failed orders itself.
    logging.getLogger("outrider").addHandler(logging.NullHandler())
    try:
        asyncio.run(work(sys.argv[1]))
    except OutriderError as error:
        sys.exit(f"outrider demo, a worker: {error}")


if __name__ == "__main__":
    main()
