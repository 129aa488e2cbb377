"""The contracts in CI: one line."""

from pathlib import Path

from outrider.testing import contract_test

HERE = Path(__file__).parent

test_contracts = contract_test(
    "examples.event_substrate.orders:app", "examples.event_substrate.billing:app", dir=HERE / "contracts"
)
