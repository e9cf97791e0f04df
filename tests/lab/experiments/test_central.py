"""The experiment at equal budgets: its cells state the rule's figures, and its claims."""

from pathlib import Path

import pytest

from hushbit.lab.experiments import central
from hushbit.lab.experiments.central import CPA, FEDAVG, GAUSSIAN, PLACES, TUNING_SEEDS, BudgetPlace
from hushbit.lab.experiments.experiment import stated_cell
from hushbit.lab.experiments.reproduce import EXPERIMENTS, DryRunner
from hushbit.registry import BY_NAME

PLACE = BudgetPlace("MNIST", "linear", 20, 3)


def test_cells_state_clip_and_server_rate() -> None:
    series = central.private_series([PLACE], [4.0, 8.0], 3)
    assert [one.scheme for one in series] == [CPA, CPA, GAUSSIAN, GAUSSIAN]
    clips = {one.settings.clip for one in series}
    assert len(clips) == 1
    rates = [one.settings.server_rate for one in series]
    assert rates[0] < rates[1]
    assert rates[2] < rates[3]
    for one in series:
        assert not one.settings.replace
        assert one.settings.resolved() == one.settings.resolved().resolved()


def test_users_draw_with_replacement_where_the_data_are_too_few() -> None:
    drawn = {(p.users, p.samples): central.settings_at(p, 60).replace for p in PLACES}
    assert drawn == {(1000, 5): False, (1000, 60): False, (10_000, 5): False, (10_000, 60): True}


def test_the_full_form_has_16_linear_cells_on_mnist() -> None:
    linear = [p for p in PLACES if (p.data, p.model) == ("MNIST", "linear")]
    assert len(linear) * len(central.EPSILONS) == 16


def test_schemes_name_their_bits_per_weight() -> None:
    assert BY_NAME["cpa"](100, 1.0, 0.1).guarantee.bits_per_entry == 1
    assert BY_NAME["gaussian"](100, 1.0, clip=1.0).guarantee.bits_per_entry == 32
    assert BY_NAME["fedavg"](100).guarantee.bits_per_entry == 32


@pytest.mark.parametrize(
    ("gaps", "holds"), [((0.1, -0.4), (True, True)), ((-0.6, 1), (False, True)), ((-2, 0), (0, 0))]
)
def test_claims_follow_the_gaps(gaps, holds) -> None:
    cells = []
    for x, gap in enumerate(gaps, 1):
        cells.append(stated_cell(CPA, "corrected", PLACE.where, "accuracy", 80 + gap, x))
        cells.append(stated_cell(GAUSSIAN, "corrected", PLACE.where, "accuracy", 80, x))
    assert tuple(check.holds for check in central.compare_with_gaussian(cells)) == holds


def test_the_quick_form_plans_its_cells(monkeypatch) -> None:
    monkeypatch.setattr(central, "QUICK_PLACES", (PLACE,))
    runner = DryRunner(Path("nowhere"), (1, 2), quick=True)
    found = EXPERIMENTS["central"].find(runner)
    # Four rates of FedAvg are tuned; then two schemes at two budgets, and FedAvg, for two seeds.
    assert len(runner.missing) == 6 * TUNING_SEEDS + 2 * (2 * 2 + 1)
    assert {cell.scheme for cell in found.cells} == {CPA, GAUSSIAN, FEDAVG}
