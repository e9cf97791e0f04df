"""hushbit: federated learning made private with one bit per weight.

Public names are imported on first use, so that the command line starts fast. `hushbit.baselines`
contains the mechanisms of other papers, `hushbit.defence` the defence against colluding users.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hushbit.errors import (
    BudgetSpent,
    DamagedFile,
    HushbitError,
    InvalidInput,
    MissingExtra,
    RefusedBallot,
)

if TYPE_CHECKING:
    from hushbit import baselines as baselines
    from hushbit import defence as defence
    from hushbit.budget import Budget
    from hushbit.cpa import CPA, NestedCPA
    from hushbit.mechanism import Mechanism
    from hushbit.privacy.accountant import Cost
    from hushbit.privacy.guarantee import Guarantee
    from hushbit.privacy.ledger import Ledger
    from hushbit.registry import mechanism_from_description
    from hushbit.tally.estimate import Estimate
    from hushbit.tally.tally import Tally
    from hushbit.tuning.auto import AutoCPA
    from hushbit.tuning.calibrate import calibrate
    from hushbit.tuning.plan import plan
    from hushbit.wire.ballot import Ballot, Ballots
    from hushbit.wire.coins import OsCoins, SeededCoins, SimulationCoins
    from hushbit.wire.keys import RoundKey, UserKey, UserKeys
    from hushbit.wrappers import Rotated, Subset, Tiers

__version__ = "0.1.0"

_MODULES = {
    "budget": ("Budget",),
    "cpa": ("CPA", "NestedCPA"),
    "mechanism": ("Mechanism",),
    "privacy.accountant": ("Cost",),
    "privacy.guarantee": ("Guarantee",),
    "privacy.ledger": ("Ledger",),
    "registry": ("mechanism_from_description",),
    "tally.estimate": ("Estimate",),
    "tally.tally": ("Tally",),
    "tuning.auto": ("AutoCPA",),
    "tuning.calibrate": ("calibrate",),
    "tuning.plan": ("plan",),
    "wire.ballot": ("Ballot", "Ballots"),
    "wire.coins": ("OsCoins", "SeededCoins", "SimulationCoins"),
    "wire.keys": ("RoundKey", "UserKey", "UserKeys"),
    "wrappers": ("Rotated", "Subset", "Tiers"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_PACKAGES = ("baselines", "defence")

__all__ = [
    "CPA",
    "AutoCPA",
    "Ballot",
    "Ballots",
    "Budget",
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
    "mechanism_from_description",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"hushbit.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hushbit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hushbit.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
