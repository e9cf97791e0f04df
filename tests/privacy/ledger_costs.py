"""A small cost and a way to charge it, for the tests of the ledger."""

from hushbit.privacy.accountant import Cost
from hushbit.privacy.ledger import Ledger

TENTH = Cost(((0.1, 1),))


def charge(ledger: Ledger, user: str | int, cost: Cost, times: int = 1) -> None:
    for number in range(times):
        ledger.charge(user, number, cost, mechanism="cpa")
