"""Golden vectors: any change of keys, words or the wire format is noticed here."""

import json

import pytest

import golden_cases
import hushbit as hb

BALLOTS = json.loads((golden_cases.FOLDER / "ballots.json").read_text())


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


@pytest.mark.parametrize("file", ["words", "keys"])
def test_words_and_keys(file: str) -> None:
    kept = json.loads((golden_cases.FOLDER / f"{file}.json").read_text())
    assert kept == json.loads(json.dumps(golden_cases.cases()[file]))
