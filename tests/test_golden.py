"""Golden vectors: these tests fail if keys, words, the wire format or decoding change.

Estimates that use a matrix product or a logarithm may differ in their last bits between
machines, so they are compared to twelve digits; with HUSHBIT_EXACT=1 every bit must be the same.
"""

import json
import os

import numpy as np
import pytest

import golden_cases
import hushbit as hb

BALLOTS = json.loads((golden_cases.FOLDER / "ballots.json").read_text())
ESTIMATES = json.loads((golden_cases.FOLDER / "estimates.json").read_text())
FINGERPRINTS = json.loads((golden_cases.FOLDER / "fingerprints.json").read_text())


@pytest.fixture(scope="module")
def estimates() -> dict[str, dict]:
    return golden_cases.estimates()


@pytest.mark.parametrize("name", golden_cases.MECHANISMS)
def test_ballots(name: str) -> None:
    made = golden_cases.ballot_case(golden_cases.MECHANISMS[name])
    assert json.loads(json.dumps(made)) == BALLOTS[name]


def test_every_golden_ballot_can_be_counted() -> None:
    assert set(BALLOTS) == set(golden_cases.MECHANISMS)
    key = hb.RoundKey(golden_cases.SECRET, golden_cases.ROUND)
    for name, mechanism in golden_cases.MECHANISMS.items():
        ballot = hb.Ballot.from_bytes(bytes.fromhex(BALLOTS[name]["wire"]))
        assert (ballot.round, ballot.user) == (golden_cases.ROUND, golden_cases.USER)
        tally = mechanism.tally(key)
        tally.add(ballot)
        assert mechanism.estimate(tally).count == 1


@pytest.mark.parametrize("file", ["words", "keys", "runs"])
def test_words_and_keys(file: str) -> None:
    kept = json.loads((golden_cases.FOLDER / f"{file}.json").read_text())
    assert kept == json.loads(json.dumps(golden_cases.cases()[file]))


def test_golden_ballots_with_a_mac_are_counted_where_one_is_required() -> None:
    kept = json.loads((golden_cases.FOLDER / "runs.json").read_text())
    key = hb.RoundKey(golden_cases.SECRET, golden_cases.ROUND, bytes.fromhex(kept["run"]))
    for name, wire in kept["wires"].items():
        tally = golden_cases.MECHANISMS[name].tally(key, require_mac=True)
        tally.add(hb.Ballot.from_bytes(bytes.fromhex(wire)))
        assert tally.count == 1


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates(estimates: dict[str, dict], name: str) -> None:
    made, kept = estimates[name], ESTIMATES[name]
    if name in golden_cases.EXACT or os.environ.get("HUSHBIT_EXACT") == "1":
        assert made == kept
    assert (made["count"], made["unbiased"]) == (kept["count"], kept["unbiased"])
    for part in ("mean", "variance"):
        found, wanted = ([float(v) for v in one[part]["first"]] for one in (made, kept))
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14, equal_nan=True)


def test_no_estimate_is_left_out(estimates: dict[str, dict]) -> None:
    assert set(estimates) == set(ESTIMATES)
    assert set(golden_cases.EXACT) <= set(golden_cases.MECHANISMS) <= set(ESTIMATES)


def test_fingerprints() -> None:
    assert golden_cases.fingerprints() == FINGERPRINTS
    assert len(set(FINGERPRINTS.values())) == len(FINGERPRINTS)
