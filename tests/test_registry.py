import math

import pytest

import hushbit as hb
from hushbit import baselines
from hushbit.errors import InvalidInput
from hushbit.registry import (
    described_dim,
    description_text,
    mechanism_by_name,
    mechanism_from_description,
    mechanism_from_text,
)

MECHANISMS = [
    hb.CPA(10, 0.5, 0.05),
    hb.CPA(10, math.inf, 0.05, rounding="nearest"),
    hb.CPA(10, 0.5, 0.05, points=4, clip=1.0),
    hb.CPA(10, 0.5, 0.05, points=4, words="uniform"),
    hb.CPA(10, 0.5, 0.05, lattice="E8", points=16),
    hb.CPA(10, 0.5, 0.05, lattice=[[1, 0], [0, 2.0]], points=5),
    hb.CPA(10, 0.5, 0.05, preset="authors"),
    hb.CPA(10, 0.5, 0.05, preset="paper", points=4),
    hb.NestedCPA(10, (0.5, 0.25), 0.05, stages=(2, 3)),
    hb.NestedCPA(10, 0.5, 0.05, stages=(2, 8)),
    hb.NestedCPA(10, 0.5, 0.05, preset="authors"),
    hb.Rotated(hb.CPA(10, 0.5, 0.05)),
    hb.Subset(hb.CPA(10, 0.5, 0.05), 3),
    hb.Rotated(hb.Subset(hb.CPA(10, 0.5, 0.05), 3)),
    baselines.FedAvg(10),
    baselines.Gaussian(10, 1.0, 0.5),
    baselines.Laplace(10, 0.5, 1.0),
    baselines.Laplace(10, math.inf, 1.0),
    baselines.Laplace(10, 0.5, preset="authors", layers=(4, 6)),
    baselines.WholeLaplace(10, 4.0, 1.0),
    baselines.SignRR(10, 0.5, 0.01),
    baselines.SignRR(10, 0.5, preset="authors"),
    baselines.SignRR(10, 0.5, 0.1, stochastic=True),
    baselines.JoPEQ(10, 0.5, 1.0),
    baselines.JoPEQ(10, 0.5, 1.0, gamma=3.0),
    baselines.JoPEQ(10, 0.5, 1.0, preset="authors"),
    baselines.MVU(10, 0.5, 1.0),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: description_text(m)[:80])
def test_a_mechanism_is_rebuilt_from_its_description(mechanism: hb.Mechanism) -> None:
    made = mechanism_from_text(description_text(mechanism))
    assert type(made) is type(mechanism)
    assert made.fingerprint == mechanism.fingerprint
    assert made.guarantee == mechanism.guarantee
    assert described_dim(mechanism.description) == 10


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: description_text(m)[:80])
def test_client_and_server_encode_the_same_ballot(mechanism: hb.Mechanism) -> None:
    made = mechanism_from_text(description_text(mechanism))
    key = hb.RoundKey(bytes(32), 1).user(3)
    update = [0.01 * i - 0.04 for i in range(10)]
    ballots = [m.encode(update, key, hb.SeededCoins(1)) for m in (mechanism, made)]
    assert ballots[0].to_bytes() == ballots[1].to_bytes()


BASE = hb.CPA(10, 0.5, 0.05).description


@pytest.mark.parametrize(
    "description",
    [
        None,
        3,
        "CPA",
        [],
        {},
        {"mechanism": "CPA"},
        {**BASE, "mechanism": "Magic"},
        {**BASE, "more": 1},
        {k: v for k, v in BASE.items() if k != "clip"},
        {**BASE, "dim": True},
        {**BASE, "dim": 10.0},
        {**BASE, "dim": "10"},
        {**BASE, "dim": 0},
        {**BASE, "epsilon_per_bit": [0.5, 0.5]},
        {**BASE, "epsilon_per_bit": 0.5},
        {**BASE, "epsilon_per_bit": ["many"]},
        {**BASE, "epsilon_per_bit": [-1.0]},
        {**BASE, "epsilon_per_bit": [float("nan")]},
        {**BASE, "radius": "wide"},
        {**BASE, "words": []},
        {**BASE, "words": [None]},
        {**BASE, "lattice": "Q"},
        {**BASE, "rounding": None},
        {**BASE, "points": [2.0]},
        {**BASE, "clip": 0},
        {"mechanism": "Rotated", "inner": BASE, "dim": 10},
        {"mechanism": "Rotated", "inner": 5},
        {"mechanism": "Subset", "report": 11, "inner": BASE},
        {"mechanism": "Subset", "report": 1, "inner": {"mechanism": "FedAvg", "dim": 10}},
    ],
)
def test_invalid_descriptions_are_refused(description: object) -> None:
    with pytest.raises(InvalidInput):
        mechanism_from_description(description)


def test_too_many_wrappers_are_refused() -> None:
    description: dict[str, object] = dict(BASE)
    for _ in range(5):
        description = {"mechanism": "Rotated", "inner": description}
    with pytest.raises(InvalidInput, match="wrappers"):
        mechanism_from_description(description)


@pytest.mark.parametrize("text", [b"{}", None, "", "[]", "{", "[" * 100_000])
def test_invalid_description_texts_are_refused(text: object) -> None:
    with pytest.raises(InvalidInput):
        mechanism_from_text(text)


@pytest.mark.parametrize("other", [{"bits": 2}, {"inputs": 16}, {"alphabet": [0.0, 1.0]}])
def test_mvu_with_more_than_one_bit_is_refused(other: dict[str, object]) -> None:
    description = baselines.MVU(10, 1.0, 1.0).description
    with pytest.raises(InvalidInput, match="has this description"):
        mechanism_from_description(description | other)


def test_mechanisms_by_name() -> None:
    made = mechanism_by_name("cpa", 10, epsilon_per_bit=0.5, radius=0.05, rotate=True)
    assert made == hb.Rotated(hb.CPA(10, 0.5, 0.05))
    assert mechanism_by_name("fedavg", 10) == baselines.FedAvg(10)
    for name, options in (("magic", {}), ("cpa", {}), ("cpa", {"epsilon": 1}), (3, {})):
        with pytest.raises(InvalidInput):
            mechanism_by_name(name, 10, **options)
