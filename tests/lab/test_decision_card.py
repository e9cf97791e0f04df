"""The decision card: best private run, verdict, ranking, for accuracies and losses."""

import math
from typing import Any

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.decision_card import DecisionCard


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
    }
    return given | changes


def test_the_card_states_the_best_private_run_beside_fedavg() -> None:
    runs = [summary("laplace", 0.7), summary("fedavg", 0.903), summary("cpa", 0.893)]
    card = DecisionCard.of(runs)
    assert card.lines() == [
        "Best private run: cpa 89.3 % (FedAvg 90.3 %), epsilon 4 per run against those who see "
        "only the model (489 against the server) at delta 1e-05, 1.0 kB per user and round.",
        "It is 1.0 points less accurate than FedAvg and sends 3.12 % of its bytes; the guarantee "
        "is reasonable against those who see only the model and weak against the server.",
    ]
    assert [row[0] for row in card.rows()] == ["fedavg", "cpa", "laplace"]
    assert card.rows()[1][1:] == ("89.3 %", "−1.0", "4", "489", "1.0 kB", "1")
    page = card.html()
    assert all(text in page for text in ("<b>89.3 %</b> FedAvg 90.3 %", card.verdict, "1.0 kB"))


def test_seeds_are_one_run_with_an_interval_from_three_on() -> None:
    runs = [summary("cpa", value, epsilon_run_model=e) for value, e in ((0.8, 3), (0.9, 5))]
    two = DecisionCard.of(runs)
    assert (two.best.seeds, two.best.epsilon_model) == (2, 5)
    assert two.rows()[0][1] == "85.0 %"
    three = DecisionCard.of([*runs, summary("cpa", 0.85)])
    assert three.rows()[0][1] == "85.0 % [72.6, 97.4]"


def test_bytes_are_those_of_a_user_who_takes_part() -> None:
    rows = [{"round": number, "users": 10} for number in range(10)]
    assert DecisionCard.of([summary("cpa", 0.5, history=rows)]).best.message_bytes == 10_000


def test_runs_without_accuracy_are_ranked_by_loss() -> None:
    no = math.nan
    runs = [summary("fedavg", no, test_loss=0.25), summary("cpa", no, test_loss=0.375)]
    card = DecisionCard.of([*runs, summary("laplace", no, test_loss=no)])
    assert [run.name for run in card.runs] == ["fedavg", "cpa"]
    assert card.lines()[0].startswith("Best private run: cpa 0.375 (FedAvg 0.25), ")
    assert card.verdict.startswith("It has a test loss 0.125 above that of FedAvg")


def test_verdicts_without_privacy_or_reference_or_proof() -> None:
    plain = DecisionCard.of([summary("fedavg", 0.9)])
    assert plain.lines() == ["Best run: fedavg 90.0 %, 32.0 kB per user and round.", plain.verdict]
    assert plain.verdict == "No run is private."
    local = DecisionCard.of([summary("cpa", 0.8, epsilon_run_model=math.inf)])
    assert "epsilon 489 per run against the server at delta" in local.lines()[0]
    assert local.verdict == (
        "No run of FedAvg shows what privacy costs; the guarantee is weak against the server, and "
        "no better one is proved."
    )
    assert local.rows()[0][3] == "as server"


def test_names_are_escaped_and_an_empty_card_raises() -> None:
    assert "<i>" not in DecisionCard.of([summary("cpa", 0.8, name="<i>")]).html()
    with pytest.raises(InvalidInput, match="test_accuracy"):
        DecisionCard.of([summary("cpa", math.nan)])
