"""Outrider carries events out of a Postgres transaction and makes sure that every subscriber acts on each of them."""

from outrider.app import Outrider
from outrider.envelope import Envelope
from outrider.errors import OutriderError, PublishRefused
from outrider.event import Event
from outrider.postgres.log import Batch
from outrider.reader import Reader

__all__ = ["Batch", "Envelope", "Event", "Outrider", "OutriderError", "PublishRefused", "Reader"]
