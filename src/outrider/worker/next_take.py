"""How the next take of a handler differs from the last one. Only decisions, no I/O: handler_reader.py acts on them.

- one by one: several events failed together. They are taken one at a time, to find the one that fails.
- careful: a receipt existed already. For a while takes look for receipts before they insert them, which is slower.
- suspect: an event of the partition may have killed a worker. It is taken while nothing else runs in this process
  (isolated), so that a crash can be blamed on it.
- armed: the crash of the suspect is counted and committed. The next take runs it; if the process survives, it is uncounted.
- rollbacks: those that could not be reported. Unreported, they look like deaths of workers, so the next take excuses them.
"""

from __future__ import annotations

from outrider.postgres.handler_batches import Claim
from outrider.postgres.log import TakeRequest
from outrider.worker.batch_size import Size
from outrider.worker.handler import Handler

SCAN = 10_000
"""The most rows of the log that one take looks at."""
ARMED_TAKES = 50
"""A suspect is disarmed after this many takes that found its partition locked."""
CAREFUL_TAKES = 100
"""How many takes stay careful."""


class NextTake:
    def __init__(self, handler: Handler, generation: int, worker: str) -> None:
        self._handler, self._generation, self._worker = handler, generation, worker
        self._size = Size(handler.limit)
        self._partition: int | None = None
        """The partition to take from; None = any."""
        self._one_by_one = 0
        """How many events to take one at a time."""
        self._careful = 0
        """How many more takes are careful."""
        self._suspect = False
        self.isolated = True
        """Nothing else runs in this process."""
        self.armed: int | None = None
        """The delivery of the armed suspect."""
        self._armed_takes = 0
        """How many more takes may find its partition locked."""
        self.rollbacks = 0
        """Those that could not be reported, because the session was lost."""

    def request(self) -> TakeRequest:
        return TakeRequest(
            subscription=self._handler.name,
            partition=self._partition,
            limit=1 if self._one_by_one else self._size.now,
            scan=SCAN,
            generation=self._generation,
            knows=list(self._handler.models),
            armed=self.armed,
            excused=self.rollbacks,
            worker=self._worker,
            careful=self._careful > 0,
            alone=self.isolated,
        )

    @property
    def needs_isolation(self) -> bool:
        return self._suspect or self.armed is not None

    def be_careful(self) -> bool:
        """A receipt existed already. Returns False if the take was careful: then it is another error."""
        if self._careful:
            return False
        self._careful = CAREFUL_TAKES
        return True

    def gives_up_suspect(self, outcome: str) -> bool:
        """After a take without a batch: whether the armed suspect cannot be run any more, so that it must be disarmed."""
        self._armed_takes -= 1
        return self.armed is not None and (outcome != "busy" or self._armed_takes <= 0)

    def after_nothing(self) -> None:
        if self.armed is None:
            self._partition, self.rollbacks, self._suspect = None, 0, False

    def after_batch(self, claim: Claim, seconds: float) -> None:
        """The batch is committed; its handlers took so many seconds."""
        events = len(claim.rows)
        self._size.learn(events, seconds)
        self._one_by_one = max(0, self._one_by_one - max(1, events))
        self._careful = max(0, self._careful - 1)
        self.rollbacks = 0
        self.armed, self._armed_takes = claim.delivery, ARMED_TAKES
        self._suspect = claim.outcome == "suspect"
        self._partition = claim.partition if self._one_by_one or self.needs_isolation else None

    def after_failure(self, claim: Claim) -> None:
        """The batch is rolled back: take from the same partition again, and risk less work."""
        self._size.shrink()
        self._partition = claim.partition

    def one_by_one(self, events: int) -> None:
        self._one_by_one = max(self._one_by_one, events)
