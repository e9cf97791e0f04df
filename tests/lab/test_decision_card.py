"""The decision card: best private run, verdict, ranking, for accuracies and losses."""

import math
from typing import Any

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.decision_card import DecisionCard
from hushbit.tuning.users_for_epsilon import users_for_epsilon

FREE = {"epsilon_run_model": "inf", "epsilon_run_server": "inf"}


def summary(mechanism: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    private = mechanism != "fedavg"
    given = {
        "mechanism": mechanism,
        "test_accuracy": accuracy,
        "users": 100,
        "rounds": 10,
        "bytes_up": 1_000_000 if private else 32_000_000,
        "epsilon_run_model": 4.0 if private else "inf",
        "epsilon_run_server": 489.0 if private else "inf",
        "delta": 1e-5,
        "epsilon_bit": 0.374 if private else "inf",
        "server": "plain",
        "server_rate": 7.36 if private else 1.0,
    }
    return given | changes


TEXT = """\
Best private run: cpa
  test accuracy                89.3 %  FedAvg 90.3 %
  epsilon against the model    4       per run, delta 1e-5
  epsilon against the server   489     per run, delta 1e-5
  sent per user and round      1.0 kB  FedAvg 32.0 kB
  users for epsilon 1 (model)  350     at the same noise; now 100
It is 1.0 points less accurate than FedAvg (server step plain, rate 1, not
tuned) and sends 3.12 % of its bytes. The guarantee is reasonable against those
who see only the model and weak against the server.

run          test   minus  epsilon,  epsilon,     sent      server  seeds
         accuracy  FedAvg     model    server           step, rate
───────  ────────  ──────  ────────  ────────  ───────  ──────────  ─────
fedavg     90.3 %                 ∞         ∞  32.0 kB     plain 1      1
cpa        89.3 %    −1.0         4       489   1.0 kB  plain 7.36      1
laplace    70.0 %   −20.3         4       489   1.0 kB  plain 7.36      1
All finished runs by test accuracy. Epsilons are for the whole run. Server rates
differ: under a budget the rate follows from clip, noise and rounds by one rule;
other runs have rate 1 unless another is given."""


def test_the_card_states_the_best_private_run_beside_fedavg() -> None:
    runs = [summary("laplace", 0.7), summary("fedavg", 0.903), summary("cpa", 0.893)]
    card = DecisionCard.of(runs)
    assert card.text() == TEXT
    page = card.html()
    for label, value, detail in card.facts():
        assert f"<dt>{label}</dt><dd><b>{value}</b> {detail}</dd>" in page
    assert card.verdict.replace(" %", "&nbsp;%") in page
    assert all(f">{cell}<" in page for row in card.rows() for cell in row if cell)
    assert page in card.notebook()
    assert card.notebook().count("<style>") == 1


def test_users_are_stated_for_the_next_stronger_tier() -> None:
    def wanted(**changes: Any) -> Any:
        return DecisionCard.of([summary("cpa", 0.8, **changes)]).best.users_for_next_tier()

    assert wanted(epsilon_run_model=12.0)[0] == 10
    assert wanted(epsilon_run_model=10.0)[0] == 1
    assert wanted(epsilon_run_model=1.0) is None
    assert wanted(epsilon_run_model=math.inf) is None
    _, users = wanted()
    exact = users_for_epsilon(1, users=100, epsilon=4, delta=1e-5, epsilon_per_bit=0.374)
    assert users == 350 >= exact > 340
    assert wanted(users=100_000)[1] == 350_000


def test_a_reference_with_another_server_step_is_called_untuned() -> None:
    def verdict(rate: float) -> str:
        return DecisionCard.of(
            [summary("fedavg", 0.7), summary("cpa", 0.6, server_rate=rate)]
        ).verdict

    assert "FedAvg (server step plain, rate 1, not tuned) and sends" in verdict(7.36)
    assert "not tuned" not in verdict(1.0)


def test_the_best_run_needs_no_trusted_server_if_there_is_such_a_run() -> None:
    trusted = summary("gaussian", 0.85, epsilon_run_server="inf")
    card = DecisionCard.of([trusted, summary("cpa", 0.8), summary("fedavg", 0.9)])
    assert [run.name for run in card.runs] == ["fedavg", "gaussian", "cpa"]
    assert card.text().startswith("Best private run without a trusted server: cpa\n")
    assert card.verdict.endswith("gaussian is more accurate (85.0 %) but needs a trusted server.")
    assert "gaussian needs a trusted server" in card.caption
    below = DecisionCard.of([trusted, summary("cpa", 0.86)])
    assert below.title == "Best private run"
    assert "gaussian" not in below.verdict
    alone = DecisionCard.of([trusted, summary("fedavg", 0.9)])
    assert (alone.title, alone.best.name) == ("Best private run", "gaussian")
    assert alone.verdict.endswith("; the server sees every update and has to be trusted.")
    assert "trusted" not in DecisionCard.of([summary("cpa", 0.8)]).caption


@pytest.mark.parametrize(("accuracy", "warned"), [(0.09, True), (0.17, True), (0.19, False)])
def test_a_run_that_learns_little_beside_fedavg_is_called_noise(
    accuracy: float, warned: bool
) -> None:
    runs = [summary("fedavg", 0.9, start_accuracy=0.1)]
    card = DecisionCard.of([*runs, summary("cpa", accuracy, start_accuracy=0.1)])
    found = f"Little was learned ({accuracy:.1%} after training, 10.0 % before): the noise is too"
    assert (found.replace("%", " %", 1) in card.verdict) == warned
    assert ("points less accurate" in card.verdict) != warned
    assert card.facts()[0][2] == "FedAvg 90.0 %, 10.0 % before training"


def test_a_run_alone_that_learns_little_may_be_noise() -> None:
    alone = DecisionCard.of([summary("cpa", 0.12, start_accuracy=0.1)])
    assert "if FedAvg learns this task, the noise is too large for 100 users" in alone.verdict
    no = {"test_accuracy": math.nan}
    loss = summary("cpa", 0.0, **no, test_loss=9.7, start_loss=1.1)
    found = "The test loss rose during training (9.7 after training, 1.1 before)"
    assert found in DecisionCard.of([loss]).verdict
    assert "server_rate (it was plain, rate 7.36) before you" in DecisionCard.of([loss]).verdict
    little = summary("cpa", 0.0, **no, test_loss=1.09, start_loss=1.1)
    assert "Little was learned (1.09 after training" in DecisionCard.of([little]).verdict
    learned = summary("cpa", 0.0, **no, test_loss=0.5, start_loss=1.1)
    assert "Little" not in DecisionCard.of([learned]).verdict
    bad = [summary("fedavg", 0.1, start_accuracy=0.1), summary("cpa", 0.1, start_accuracy=0.1)]
    assert "noise" not in DecisionCard.of(bad).verdict  # FedAvg learns nothing, too


def test_one_run_has_no_ranking() -> None:
    assert "<table" not in DecisionCard.of([summary("cpa", 0.8)]).html()


def test_equal_server_steps_need_no_remark() -> None:
    runs = [summary("fedavg", 0.9), summary("cpa", 0.8, server_rate=1.0)]
    assert "Server steps" not in DecisionCard.of(runs).caption


def test_a_gap_that_rounds_to_zero_is_no_gap() -> None:
    card = DecisionCard.of([summary("fedavg", 0.9), summary("cpa", 0.9002)])
    assert "It is as accurate as FedAvg" in card.verdict


def test_seeds_are_one_run_with_an_interval_from_three_on() -> None:
    runs = [summary("cpa", value, epsilon_run_model=e) for value, e in ((0.8, 3), (0.9, 5))]
    two = DecisionCard.of(runs)
    assert (two.best.seeds, two.best.epsilon_model) == (2, 5)
    assert two.rows()[0][1] == "85.0 %"
    three = DecisionCard.of([*runs, summary("cpa", 0.85)])
    assert three.rows()[0][1] == "85.0 % [72.6, 97.4]"
    assert three.facts()[0][2] == "means of 3 seeds"


def test_bytes_are_those_of_a_user_who_takes_part() -> None:
    rows = [{"round": number, "users": 10} for number in range(10)]
    assert DecisionCard.of([summary("cpa", 0.5, history=rows)]).best.message_bytes == 10_000


def test_runs_without_accuracy_are_ranked_by_loss() -> None:
    no = math.nan
    runs = [summary("fedavg", no, test_loss=0.25), summary("cpa", no, test_loss=0.375)]
    card = DecisionCard.of([*runs, summary("laplace", no, test_loss=no)])
    assert [run.name for run in card.runs] == ["fedavg", "cpa"]
    assert card.facts()[0] == ("test loss", "0.375", "FedAvg 0.25")
    assert card.verdict.startswith("It has a test loss 0.125 above that of FedAvg")


def test_verdicts_without_privacy_or_reference_or_proof() -> None:
    plain = DecisionCard.of([summary("fedavg", 0.9)])
    assert plain.text().splitlines() == [
        "Run: fedavg",
        "  test accuracy            90.0 %",
        "  sent per user and round  32.0 kB",
        "Not private: messages are sent without noise.",
    ]
    local = DecisionCard.of([summary("cpa", 0.8, epsilon_run_model=math.inf)])
    assert local.facts()[1:3] == [
        (
            "epsilon against the model",
            "489",
            "no smaller one than against the server is proved",
        ),
        ("epsilon against the server", "489", "per run, delta 1e-5"),
    ]
    assert local.verdict == (
        "Compare it with FedAvg to see what privacy costs. The guarantee is weak against the "
        "server and against those who see only the model."
    )
    trusted = DecisionCard.of([summary("gaussian", 0.8, epsilon_run_server="inf")])
    assert trusted.facts()[2] == ("epsilon against the server", "∞", "no guarantee")
    assert local.rows()[0][3] == local.rows()[0][4] == "489"
    assert local.best.users_for_next_tier() is None
    assert DecisionCard.of([summary("fedavg", 0.9), summary("cpa-no-rr", 0.9, **FREE)]).verdict == (
        "No run is private."
    )


def test_names_are_escaped_and_an_empty_card_raises() -> None:
    assert "<i>" not in DecisionCard.of([summary("cpa", 0.8, name="<i>")]).html()
    with pytest.raises(InvalidInput, match="test_accuracy"):
        DecisionCard.of([summary("cpa", math.nan)])
