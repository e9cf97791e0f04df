"""Attack: two runs under one secret, in which the words of a user repeat.

With equal words, the bits of a user in both runs differ only by its coins and its update, so bits
of the second run can be predicted from those of the first. Words, rotations and key ids must differ
in every round; only a run that is left out of the derivation makes them equal.
"""

import numpy as np
import pytest

import hushbit as hb
from hushbit.kernels.words import draw_words

SECRET = bytes(range(32))
RUNS = (b"spring", b"autumn", b"", b"\x00")
USER, WORDS = 17, 4000


def words(run: bytes, number: int) -> np.ndarray:
    key = hb.RoundKey(SECRET, number, run).users([USER]).keys[0]
    return draw_words(key, 0, WORDS, 4, "hadamard")


@pytest.mark.parametrize("number", [0, 1, 2**40])
def test_words_of_two_runs_are_independent(number: int) -> None:
    drawn = [words(run, number) for run in RUNS]
    for at, one in enumerate(drawn):
        for other in drawn[:at]:
            # Two words over four points agree in all signs with probability 1/6.
            share = (one == other).all(axis=1).mean()
            assert abs(share - 1 / 6) < 6 * np.sqrt(5 / 36 / WORDS)


def test_no_key_of_a_run_occurs_in_another_run() -> None:
    seen: set[bytes] = set()
    for run in RUNS:
        for number in range(5):
            key = hb.RoundKey(SECRET, number, run)
            derived = {key.rotation, key.key_id, key.tally_key, key.user(USER).key}
            assert not derived & seen
            seen |= derived


def test_a_ballot_of_one_run_is_refused_in_another() -> None:
    mechanism = hb.CPA(40, 0.5, 1.0)
    spring, autumn = (hb.RoundKey(SECRET, 0, run) for run in RUNS[:2])
    key = spring.user(USER)
    wire = mechanism.encode(np.zeros(40), key).to_bytes(key)
    tally = mechanism.tally(autumn, require_mac=True)
    with pytest.raises(hb.RefusedBallot) as caught:
        tally.add(hb.Ballot.from_bytes(wire))
    assert caught.value.reason == "forged"
    assert tally.count == 0
