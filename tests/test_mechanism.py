"""The protocol: signatures, repr, immutability, and errors of wrong calls."""

import inspect
import math
import pickle

import numpy as np
import pytest

import hushbit as hb
from golden_cases import MECHANISMS, OTHERS
from hushbit import baselines
from hushbit.mechanism import check_width
from hushbit.registry import MECHANISMS as CLASSES
from hushbit.registry import mechanism_by_name
from hushbit.wrappers import NormVote

EVERY = {**MECHANISMS, **OTHERS}
NAMES = {kind.__name__: kind for kind in CLASSES} | {
    "AutoCPA": hb.AutoCPA,
    "Budget": hb.Budget,
    "math": math,
}


@pytest.mark.parametrize("name", EVERY)
def test_repr_is_the_call(name: str) -> None:
    mechanism = EVERY[name]
    made = eval(repr(mechanism), NAMES)
    assert made == mechanism
    assert repr(made) == repr(mechanism)


@pytest.mark.parametrize("preset", ["corrected", "paper", "authors"])
def test_repr_leaves_out_what_the_preset_implies(preset: str) -> None:
    shown = "" if preset == "corrected" else f", preset={preset!r}"
    assert repr(hb.CPA(4, 0.5, 1.0, preset=preset)) == (
        f"CPA(dim=4, epsilon_per_bit=0.5, radius=1.0{shown})"
    )
    assert repr(hb.NestedCPA(4, 0.5, 1.0, stages=(2, 4), preset=preset)) == (
        f"NestedCPA(dim=4, epsilon_per_bit=0.5, radius=1.0, stages=(2, 4){shown})"
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_pickled_mechanism_equals_the_original(name: str) -> None:
    again = pickle.loads(pickle.dumps(EVERY[name]))
    assert again == EVERY[name]
    assert again.fingerprint == EVERY[name].fingerprint


def test_signatures_show_the_parameters() -> None:
    shown = inspect.signature(hb.CPA)
    assert list(shown.parameters)[:3] == ["dim", "epsilon_per_bit", "radius"]
    assert shown.parameters["points"].kind is inspect.Parameter.KEYWORD_ONLY
    for kind in (*CLASSES, hb.AutoCPA):
        parameters = inspect.signature(kind).parameters.values()
        assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters)
    privacy = ("epsilon_per_bit", "epsilon_per_entry", "epsilon_per_message", "epsilon")
    for kind in CLASSES:
        for parameter in inspect.signature(kind).parameters.values():
            if parameter.name in privacy:
                assert parameter.default is inspect.Parameter.empty


def test_there_are_at_most_30_public_names() -> None:
    assert len(hb.__all__) <= 30
    for name in hb.__all__:
        assert getattr(hb, name) is not None
    assert hb.baselines is baselines
    assert set(hb.__all__) <= set(dir(hb))
    with pytest.raises(AttributeError, match="nothing"):
        _ = hb.nothing


CPA = hb.CPA(4, 0.5, 1.0)
KEY = hb.RoundKey(bytes(32), 1)
WRONG = {
    "no dim": (lambda: hb.CPA(0, 0.5, 1.0), "dim"),
    "no epsilon": (lambda: hb.CPA(4, 0.0, 1.0), "epsilon"),
    "epsilon as text": (lambda: hb.CPA(4, "half", 1.0), "epsilon"),
    "negative radius": (lambda: hb.CPA(4, 0.5, -1.0), "radius"),
    "one point": (lambda: hb.CPA(4, 0.5, 1.0, points=1), "points"),
    "unknown rounding": (lambda: hb.CPA(4, 0.5, 1.0, rounding="up"), "rounding"),
    "unknown lattice": (lambda: hb.CPA(4, 0.5, 1.0, lattice="Q9", points=4), "lattice"),
    "one stage": (lambda: hb.NestedCPA(4, 0.5, 1.0, stages=(2,)), "stages"),
    "subset of a rotation": (lambda: hb.Subset(hb.Rotated(CPA), 2), r"Rotated\(Subset"),
    "rotation of nothing": (lambda: hb.Rotated(None), "mechanism"),
    "points of no points": (lambda: baselines.FedAvg(4).scaled(2.0), "points to scale"),
    "noise of no noise": (lambda: baselines.FedAvg(4).noise_per_user(0.1), "noise is predicted"),
    "key of a server": (lambda: CPA.encode(np.zeros(4), KEY), "RoundKey.user"),
    "update of another dim": (lambda: CPA.encode(np.zeros(5), KEY.user(1)), "4"),
    "update that is not finite": (lambda: CPA.encode([0, 0, np.nan, 0], KEY.user(1)), "finite"),
    "estimate of nothing": (lambda: CPA.estimate(CPA.tally(KEY)), "no ballots"),
    "tally of another": (lambda: CPA.estimate(hb.Rotated(CPA).tally(KEY)), "Tally of Rotated"),
    "no tally": (lambda: CPA.estimate(None), "got a NoneType$"),
    "epsilon twice": (
        lambda: hb.AutoCPA(
            4, 9, epsilon_per_bit=1.0, budget=hb.Budget(1.0, 0.0, per="bit", against="server")
        ),
        "give either",
    ),
    "a vote without epsilon": (lambda: NormVote(CPA, 1.0, 0.0), "epsilon"),
    "unknown name": (lambda: mechanism_by_name("cpaa", 4), "choose one of"),
    "unknown option": (lambda: mechanism_by_name("cpa", 4, size=3), "size"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_wrong_calls_name_the_argument(name: str) -> None:
    call, word = WRONG[name]
    with pytest.raises(hb.InvalidInput, match=word):
        call()


def test_errors_never_echo_payloads_or_secrets() -> None:
    tally = CPA.tally(KEY)
    secret, payload = b"the secret of this round, 32 byte", b"PAYLOAD!"
    for call in (
        lambda: tally.add(payload),
        lambda: tally.add_many([payload]),
        lambda: hb.Tiers(CPA).tally(KEY).add(payload),
        lambda: CPA.tally(secret),
        lambda: hb.RoundKey(secret, 1),
    ):
        with pytest.raises(hb.HushbitError) as raised:
            call()
        assert "PAYLOAD" not in str(raised.value)
        assert "secret of" not in str(raised.value)


def test_tiers_have_the_methods_of_a_mechanism() -> None:
    tiers = hb.Tiers(CPA, hb.CPA(4, 2.0, 1.0))
    tally = tiers.tally(KEY)
    tally.add(tiers.encode(np.zeros(4), KEY.user(1), tier=0))
    tally.add_many(tiers.encode_many(np.zeros((2, 4)), KEY.users([2, 3]), tier=1))
    assert tiers.dim == 4
    assert tiers.estimate(tally).count == 3
    assert [one.epsilon_per_bit for one in tiers.guarantees] == [0.5, 2.0]
    with pytest.raises(hb.InvalidInput, match="tier"):
        tiers.encode(np.zeros(4), KEY.user(1), tier=2)


def test_options_of_an_estimate_are_those_of_its_decoder() -> None:
    tally = CPA.tally(KEY)
    tally.add(CPA.encode(np.ones(4), KEY.user(1)))
    paper = CPA.estimate(tally, decoder="paper")
    assert not paper.unbiased
    assert CPA.estimate(tally).unbiased
    for options in ({"size": 3}, {"decoder": "paper", "size": 3}):
        with pytest.raises(hb.InvalidInput, match="CPA has no option size"):
            CPA.estimate(tally, **options)


def test_a_tally_has_a_histogram_and_takes_ballots_without_mac_by_default() -> None:
    mechanism = hb.CPA(4, 0.5, 1.0, points=4)
    tally = mechanism.tally(KEY)
    assert not tally.require_mac
    tally.add(mechanism.encode(np.zeros(4), KEY.user(1)))
    assert mechanism.estimate(tally).histograms


@pytest.mark.parametrize("dim", [7, 8, 9, 16])
def test_only_ballots_of_the_width_are_read(dim: int) -> None:
    mechanism = hb.CPA(dim, 0.5, 1.0)
    ballots = mechanism.encode_many(np.zeros((3, dim)), KEY.users([1, 2, 3]))
    check_width(ballots, dim)
    for bits in (dim - 1, dim + 1):
        with pytest.raises(hb.RefusedBallot, match=f"has {bits} bits"):
            check_width(ballots, bits)


def test_what_mechanisms_offer() -> None:
    """Ballots in clear, histograms and votes, by mechanism."""
    subset, rotated = hb.Subset(CPA, 2), hb.Rotated(CPA)
    laplace, fedavg = baselines.Laplace(4, 0.5, 1.0), baselines.FedAvg(4)
    offered = {
        m.description["mechanism"]: (m.sends_updates, m.keeps_histogram, m.votes is not None)
        for m in (CPA, subset, rotated, laplace, fedavg)
    }
    assert offered == {
        "CPA": (False, True, True),
        "Subset": (False, False, True),
        "Rotated": (False, False, True),
        "Laplace": (False, False, False),
        "FedAvg": (True, False, False),
    }
    assert (CPA.votes.readable, CPA.votes.fair_bits, rotated.votes.fair_bits) == (True, 4, 4)
    assert (subset.votes.readable, subset.votes.fair_bits) == (True, 2)
    assert not hb.Subset(hb.CPA(4, 0.5, 1.0, preset="paper", rounding="nearest"), 2).votes.readable


def test_payloads_need_one_row_for_each_key() -> None:
    keys = KEY.users([1, 2])
    for shape in ((1, 1), (3, 1), (2, 0)):
        with pytest.raises(hb.InvalidInput, match="2 keys and 4 votes need a payload of shape"):
            CPA.add_payload(CPA.empty_counters(True), np.zeros(shape, np.uint8), keys)


def test_a_shown_stage_has_no_decoders() -> None:
    assert "decoders" not in repr(CPA.stage_encoders[0])


def test_an_interrupted_tally_is_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = CPA.tally(KEY)
    tally.add(CPA.encode(np.zeros(4), KEY.user(1)))
    ballot = CPA.encode(np.zeros(4), KEY.user(2))

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hb.CPA, "add_payload", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tally.add(ballot)
    with pytest.raises(hb.HushbitError, match="interrupted"):
        CPA.estimate(tally)
