"""Contracts between the contexts that publish events and those that read them. Only `snapshots` reads and writes files.

`Contract` is the shape of one version of an event, as its snapshot keeps it. `compare` says what has changed since the
snapshot and what of it breaks; `fits` says what a reader needs that a producer does not promise; `judge` asks both of
everything that an app declares; `catalogue` writes it all down for people.
"""

from outrider.contract.catalogue import catalogue
from outrider.contract.change import ChangeKind, ContractChange, compare
from outrider.contract.compatibility import Misfit, MisfitKind, fits
from outrider.contract.document import Contract, reading
from outrider.contract.inputs import Consumer, EventClass, Known, Snapshot, Unreadable
from outrider.contract.judge import judge
from outrider.contract.report import Block, ContractFinding, ContractReport, FindingKind

__all__ = [
    "Block",
    "ChangeKind",
    "Consumer",
    "Contract",
    "ContractChange",
    "ContractFinding",
    "ContractReport",
    "EventClass",
    "FindingKind",
    "Known",
    "Misfit",
    "MisfitKind",
    "Snapshot",
    "Unreadable",
    "catalogue",
    "compare",
    "fits",
    "judge",
    "reading",
]
