"""hushbit: federated learning made private with a few bits."""

from hushbit.ballot import Ballot, Ballots
from hushbit.coins import OsCoins, SeededCoins, SimulationCoins
from hushbit.cpa import CPA, NestedCPA
from hushbit.decode import Estimate
from hushbit.errors import (
    BudgetSpent,
    DamagedFile,
    HushbitError,
    InvalidInput,
    MissingExtra,
    RefusedBallot,
)
from hushbit.keys import RoundKey, UserKey, UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.calibration import calibrate
from hushbit.privacy.cost import Cost
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.ledger import Ledger
from hushbit.rotation import Rotated
from hushbit.subset import Subset
from hushbit.tally import Tally
from hushbit.tiers import Tiers

__version__ = "0.1.0"

__all__ = [
    "CPA",
    "Ballot",
    "Ballots",
    "BudgetSpent",
    "Cost",
    "DamagedFile",
    "Estimate",
    "Guarantee",
    "HushbitError",
    "InvalidInput",
    "Ledger",
    "Mechanism",
    "MissingExtra",
    "NestedCPA",
    "OsCoins",
    "RefusedBallot",
    "Rotated",
    "RoundKey",
    "SeededCoins",
    "SimulationCoins",
    "Subset",
    "Tally",
    "Tiers",
    "UserKey",
    "UserKeys",
    "calibrate",
]
