"""The vote on the norm: unbiased, part of the guarantee; other bits do not change."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from hushbit.encoding.randomized_response import RANGE, RandomizedResponse
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.registry import mechanism_from_description
from hushbit.wrappers import NORM_COUNTER, NormVote

KEY = hb.RoundKey(bytes(32), 4)


def share_below(mechanism, tally):
    """Unbiased share of users whose norm is at most the level."""
    total = int(tally.counters[NORM_COUNTER][0])
    return 0.5 + total / (2 * mechanism.beta * tally.count)


def voting(dim=7, level=1.0, epsilon=0.5, answers=1, **options):
    return NormVote(hb.CPA(dim, 0.5, 0.2, **options), level, epsilon, answers)


def updates(users, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(users, dim)) * 0.3


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_share_is_unbiased_exactly(epsilon):
    """E[1/2 + answer / (2 beta)] is 1 for a norm below the level and 0 for one above."""
    response = RandomizedResponse(epsilon)
    truth = Fraction(RANGE - response.flip_count, RANGE)
    for below in (1, 0):
        chance_of_yes = truth if below else 1 - truth
        mean_answer = 2 * chance_of_yes - 1
        assert Fraction(1, 2) + mean_answer / (2 * response.beta) == below


def test_answers_are_flipped_with_the_probability_of_epsilon():
    """20 000 answers; a wrong rate would be 6 standard errors away."""
    mechanism = voting(dim=1, level=1.0)
    keys = KEY.users(np.arange(20_000))
    ballots = mechanism.encode_many(np.zeros((20_000, 1)), keys, hb.SeededCoins(3))
    tally = mechanism.tally(KEY)
    tally.add_many(ballots)
    yes_share = (20_000 + int(tally.counters[NORM_COUNTER][0])) / 40_000
    truth = 1 - mechanism.response.flip_count / RANGE
    assert abs(yes_share - truth) < 4 * np.sqrt(0.25 / 20_000)
    assert abs(share_below(mechanism, tally) - 1) < 4 * np.sqrt(0.25 / 20_000) / 0.2449


@pytest.mark.parametrize("answers", [1, 3, 5, 9])
def test_beta_of_a_majority_equals_the_enumeration(answers):
    flip = Fraction(RandomizedResponse(0.5).flip_count, RANGE)
    expected = Fraction(0)
    for flips in itertools.product((0, 1), repeat=answers):
        chance = math.prod((flip if flipped else 1 - flip) for flipped in flips)
        expected += chance if sum(flips) < answers / 2 else -chance
    assert voting(answers=answers).beta == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("answers", [3, 9])
def test_each_answer_is_flipped_on_its_own(answers):
    """Pairs of answers of 4 000 users; shared flips would make them equal."""
    mechanism = voting(dim=3, answers=answers)
    made = mechanism.encode_many(np.zeros((4000, 3)), KEY.users(np.arange(4000)), hb.SeededCoins(3))
    bits = np.unpackbits(made.payload, axis=1, bitorder="little")[:, 3 : 3 + answers]
    truth = 1 - mechanism.response.flip_count / RANGE
    assert abs(bits.mean() - truth) < 4 * np.sqrt(0.25 / bits.size)
    correlation = np.corrcoef(bits.T) - np.eye(answers)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("answers", [1, 3, 9])
@pytest.mark.parametrize("dim", [7, 8, 9, 16])
def test_the_vote_does_not_change_other_bits(dim, answers):
    mechanism, keys = voting(dim, answers=answers), KEY.users(np.arange(50))
    rows = updates(50, dim)
    plain = mechanism.inner.encode_many(rows, keys, hb.SimulationCoins(1))
    both = mechanism.encode_many(rows, keys, hb.SimulationCoins(1))
    assert both.bits == plain.bits + answers
    assert both.payload.shape[1] == (dim + answers + 7) // 8
    tally, inner = mechanism.tally(KEY), mechanism.inner.tally(KEY)
    tally.add_many(both)
    inner.add_many(plain)
    assert np.array_equal(tally.counters["stage 0"], inner.counters["stage 0"])
    got, wanted = mechanism.estimate(tally), mechanism.inner.estimate(inner)
    assert np.array_equal(got.mean, wanted.mean)
    assert got.count == 50


def test_without_noise_the_share_is_exact():
    mechanism = voting(dim=3, level=1.0, epsilon=np.inf)
    rows = np.array([[0.5, 0, 0], [1.0, 0, 0], [0, 1.1, 0], [3, 0, 0], [0, 0, 0]])
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(rows, KEY.users(np.arange(5)), hb.SeededCoins(0)))
    assert share_below(mechanism, tally) == pytest.approx(3 / 5, abs=1e-15)


def test_adding_one_at_a_time_and_merging_is_the_same():
    mechanism, rows = voting(), updates(9, 7)
    whole = mechanism.tally(KEY)
    whole.add_many(mechanism.encode_many(rows, KEY.users(np.arange(9)), hb.SimulationCoins(5)))
    parts = [mechanism.tally(KEY), mechanism.tally(KEY)]
    for user in reversed(range(9)):
        ballot = mechanism.encode(rows[user], KEY.user(user), hb.SimulationCoins(5))
        parts[user % 2].add(hb.Ballot.from_bytes(ballot.to_bytes()))
    parts[0].merge(parts[1])
    assert all(np.array_equal(parts[0].counters[k], whole.counters[k]) for k in whole.counters)


def test_the_guarantee_includes_the_vote():
    inner = hb.CPA(7850, 0.5, 0.05)
    guarantee = NormVote(inner, 1.0, 0.3).guarantee
    assert guarantee.epsilon_per_message() == 7850 * 0.5 + 0.3
    assert guarantee.message_bits == 7851
    assert guarantee.epsilon_per_bit == 0.5
    assert guarantee.epsilon_per_message(1e-5) > inner.guarantee.epsilon_per_message(1e-5)
    assert NormVote(inner, 1.0, 0.7).guarantee.epsilon_per_bit == 0.7
    many = NormVote(inner, 1.0, 0.3, answers=5).guarantee
    assert many.epsilon_per_message() == 7850 * 0.5 + 5 * 0.3
    assert many.message_bits == 7855


def test_rho_of_the_vote_is_added():
    inner = hb.CPA(100, 0.2, 1.0, clip=1.0)
    assert NormVote(inner, 1.0, 0.4).guarantee.rho == pytest.approx(inner.guarantee.rho + 0.08)
    many = NormVote(inner, 1.0, 0.4, answers=3)
    assert many.guarantee.rho == pytest.approx(inner.guarantee.rho + 0.24)


def test_bits_after_the_vote_are_refused():
    mechanism = voting(dim=7)
    ballot = mechanism.encode(np.zeros(7), KEY.user(1))
    assert len(ballot.payload) == 1
    mechanism = voting(dim=8)
    ballot = mechanism.encode(np.zeros(8), KEY.user(1))
    forged = hb.Ballot(
        ballot.fingerprint,
        ballot.round,
        ballot.user,
        ballot.bits,
        bytes([ballot.payload[0], ballot.payload[1] | 2]),
    )
    tally = mechanism.tally(KEY)
    with pytest.raises(RefusedBallot):
        tally.add(forged)
    assert tally.count == 0


def test_padding_inside_is_refused_by_the_inner_mechanism():
    mechanism = NormVote(hb.NestedCPA(3, 1.0, 0.2, stages=(2, 2)), 1.0, 1.0)
    ballot = mechanism.encode(np.zeros(3), KEY.user(1))
    forged = hb.Ballot(
        ballot.fingerprint,
        ballot.round,
        ballot.user,
        ballot.bits,
        bytes([ballot.payload[0] | 8, ballot.payload[1]]),
    )
    with pytest.raises(RefusedBallot):
        mechanism.tally(KEY).add(forged)


def test_a_norm_vote_is_rebuilt_from_its_description():
    mechanism = NormVote(hb.Rotated(hb.CPA(12, np.inf, 0.2)), 1.5, np.inf)
    assert mechanism_from_description(mechanism.description) == mechanism


@pytest.mark.parametrize("level", [0.0, -1.0, np.nan, np.inf, "1", True, None])
def test_wrong_levels_are_refused(level):
    with pytest.raises(InvalidInput):
        voting(level=level)


@pytest.mark.parametrize("answers", [0, 2, 257, 1.5, True, "3"])
def test_wrong_numbers_of_answers_are_refused(answers):
    with pytest.raises(InvalidInput):
        voting(answers=answers)


def test_invalid_inner_mechanism_or_epsilon_is_refused():
    with pytest.raises(InvalidInput):
        NormVote("cpa", 1.0, 0.5)
    with pytest.raises(InvalidInput):
        voting(epsilon=0.0)


@pytest.mark.parametrize("answers", [1, 3, 31])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0])
def test_the_epsilon_of_a_majority_is_rounded_up(epsilon: float, answers: int) -> None:
    """The tally counts the majority; its epsilon, with 50 digits, is at most the stated one."""
    with localcontext() as context:
        context.prec = 50
        odds = Decimal(epsilon).exp()
        ways = [math.comb(answers, k) * odds**k for k in range(answers + 1)]
        exact = (sum(ways[answers // 2 + 1 :]) / sum(ways[: answers // 2 + 1])).ln()
        stated = Decimal(voting(epsilon=epsilon, answers=answers).guarantee.sums.extra[0])
        assert exact <= stated <= exact * (1 + Decimal("1e-9"))


def test_a_majority_without_flips_has_no_epsilon() -> None:
    assert voting(epsilon=math.inf, answers=3).guarantee.sums.extra == (math.inf,)


def test_a_norm_equal_to_the_level_is_at_most_the_level():
    mechanism = voting(dim=2, level=5.0, epsilon=math.inf)
    above = [3.0, math.nextafter(4.0, 5.0)]
    ballots = mechanism.encode_many(np.array([[3.0, 4.0], above]), KEY.users([1, 2]))
    assert mechanism.answers_in(ballots.payload)[:, 0].tolist() == [True, False]


def test_as_many_coins_flip_as_the_response_states(monkeypatch):
    mechanism = voting(answers=3)
    count = mechanism.response.flip_count

    def draw(coin, tag, depth, block, offset, words):
        words[:] = (0, count - 1, count)

    monkeypatch.setattr("hushbit.wrappers.keystream", draw)
    assert mechanism._flips(np.zeros((1, 8), np.uint32)).tolist() == [[True, True, False]]


@pytest.mark.parametrize("dim", [7, 8, 9, 16])
@pytest.mark.parametrize("answers", [1, 9])
def test_payloads_are_split_where_the_answers_begin(dim, answers):
    mechanism = voting(dim=dim, answers=answers)
    assert mechanism.payload_bits == dim + answers
    rng = np.random.default_rng(dim)
    bits, votes = rng.integers(0, 2, (4, dim)), rng.integers(0, 2, (4, answers)).astype(bool)
    inner = np.packbits(bits, axis=1, bitorder="little")
    payload = mechanism.append_answers(inner, votes)
    assert payload.shape == (4, (dim + answers + 7) // 8)
    found, majority = mechanism.split_payload(payload)
    assert (found == inner).all()
    assert (mechanism.answers_in(payload) == votes).all()
    assert majority.tolist() == [1 if sum(row) > answers / 2 else -1 for row in votes.tolist()]
    mask = np.unpackbits(mechanism.votes.mask(), bitorder="little")
    assert mask.sum() == dim + answers == np.flatnonzero(mask)[-1] + 1


def test_one_ballot_adds_at_most_one_vote_on_the_norm():
    mechanism = voting(answers=9)
    assert mechanism.largest_votes(mechanism.empty_counters(True))[NORM_COUNTER] == 1


def test_the_largest_number_of_answers_is_named():
    with pytest.raises(hb.InvalidInput, match="at most 255; got 257"):
        voting(answers=257)
    assert voting(answers=255).answers == 255
