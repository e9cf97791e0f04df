"""Fixtures that the tests of the ledger share."""

from pathlib import Path

import pytest

from hushbit.privacy.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger")
