"""signSGD with randomized response, and its equality with one-bit MVU and two-point CPA."""

import math

import numpy as np
import pytest

from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR, stochastic_sign_bits
from hushbit.cpa import CPA
from hushbit.defence.defence import biased_bits
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.kernels.chacha import keystream
from hushbit.kernels.words import WORD_TAG
from hushbit.wire.coins import SeededCoins, SimulationCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(secret=bytes(32), round=1)


def threshold(value: float, scale: float, half: float) -> int:
    """How many of the 2^32 coins give a one, by bisection: the bit is monotone in the coin."""
    low, high = 0, 2**32
    bit = np.empty(1, dtype=np.uint32)
    while low < high:
        middle = (low + high) // 2
        coin = np.array([middle], dtype=np.uint32)
        stochastic_sign_bits(np.array([value]), scale, half, coin, bit)
        low, high = (middle + 1, high) if bit[0] else (low, middle)
    return low


@pytest.mark.parametrize("epsilon", [0.5, 2.0, math.inf])
def test_signs_are_unchanged_with_probability_p(epsilon):
    response = RandomizedResponse(epsilon)
    half = float(response.threshold_offset)
    assert threshold(1.0, half, half) == 2**32 - response.flip_count
    assert threshold(-1.0, half, half) == response.flip_count
    assert threshold(0.0, half, half) == 2**31  # a tie is a fair coin


def test_stochastic_signs_have_the_closed_form_of_mvu():
    for epsilon in (0.5, 1.0, 4.0):
        half = float(RandomizedResponse(epsilon).threshold_offset)
        a = 1 / math.expm1(epsilon)
        for z in np.linspace(-1, 1, 9):
            high = ((z + 1) / 2 + a) / (1 + 2 * a)
            assert threshold(z * 0.05, half / 0.05, half) / 2**32 == pytest.approx(high, abs=4e-10)


def test_one_bit_mvu_stochastic_sign_and_two_point_cpa_send_equal_bits():
    """With equal coins they send equal votes, so their distributions are equal."""
    dim, radius, epsilon = 1000, 0.05, 0.5
    update = np.random.default_rng(3).normal(scale=0.04, size=dim)
    key, coins = KEY.user(12), SimulationCoins(9)

    def bits(mechanism):
        payload = np.frombuffer(mechanism.encode(update, key, coins).payload, dtype=np.uint8)
        return np.unpackbits(payload, count=dim, bitorder="little")

    sign = bits(SignRR(dim, epsilon, radius, stochastic=True))
    assert np.array_equal(sign, bits(MVU(dim, epsilon, radius)))
    word = np.empty(4096 // 32, dtype=np.uint32)
    keystream(KEY.users([12]).keys[0], WORD_TAG, 0, 0, 0, word)
    words = np.unpackbits(word.view(np.uint8), count=dim, bitorder="little")
    assert np.array_equal(sign, bits(CPA(dim, epsilon, radius)) ^ words)


def test_one_bit_mechanisms_decode_to_the_same_numbers():
    dim, radius, epsilon = 40, 0.05, 0.5
    updates = np.random.default_rng(3).normal(scale=0.02, size=(30, dim))
    keys, coins = KEY.users(range(30)), SimulationCoins(9)
    means = []
    for mechanism in (
        SignRR(dim, epsilon, radius, stochastic=True),
        MVU(dim, epsilon, radius),
        CPA(dim, epsilon, radius),
    ):
        tally = mechanism.tally(KEY)
        tally.add_many(mechanism.encode_many(updates, keys, coins))
        means.append(mechanism.estimate(tally).mean)
    assert np.allclose(means[0], means[1], rtol=1e-12)
    assert np.allclose(means[0], means[2], rtol=1e-9)


def move(mechanism, updates):
    tally = mechanism.tally(KEY)
    keys = KEY.users(range(len(updates)))
    tally.add_many(mechanism.encode_many(updates, keys, SeededCoins(4)))
    return mechanism.estimate(tally)


def test_results_without_noise():
    updates = np.array([[1.0, -2, 3], [4, -5, -6], [7, -8, -9]])
    mean = move(SignRR(3, math.inf, 0.3), updates)
    assert mean.mean == pytest.approx([0.3, -0.3, -0.1])
    assert not mean.unbiased
    assert move(SignRR(3, math.inf, 0.3, vote="majority"), updates).mean == pytest.approx(
        [0.3, -0.3, -0.3]
    )
    published = move(SignRR(3, math.inf, preset="authors"), np.zeros((5, 3)))
    assert published.mean == pytest.approx([1, 1, 1])  # zero counts as plus
    assert np.abs(move(SignRR(3000, math.inf, 1.0), np.zeros((1, 3000))).mean.mean()) < 0.1


def test_results_are_divided_by_2p_minus_1_unless_preset_authors():
    updates = np.ones((1, 200_000))
    beta = float(RandomizedResponse(0.5).beta)
    honest = move(SignRR(200_000, 0.5, 0.01), updates)
    assert honest.mean.mean() == pytest.approx(0.01, rel=0.06)
    assert honest.mean.var() == pytest.approx(honest.variance[0], rel=0.02)
    published = move(SignRR(200_000, 0.5, preset="authors"), updates)
    assert published.mean.mean() == pytest.approx(beta, rel=0.06)


def test_guarantee_is_per_bit():
    guarantee = SignRR(100, 0.5, 0.01).guarantee
    assert (guarantee.unit, guarantee.epsilon_per_bit, guarantee.bits_per_entry) == ("bit", 0.5, 1)
    assert guarantee.epsilon_per_message() == 50


@pytest.mark.parametrize("options", [{"step": 0.01}, {"preset": "authors"}])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 2.0, math.inf])
def test_encode_payload_equals_encode_user(epsilon, options):
    """Two million votes; for about sixty of them both halves of a coin decide."""
    mechanism = SignRR(50_003, epsilon, **options)
    updates = np.random.default_rng(4).normal(size=(40, 50_003)).astype(np.float32)
    updates[:, ::7] = 0.0
    keys = KEY.users(np.arange(40))
    coins = SimulationCoins(9).keys(keys)
    payload, over = mechanism.encode_payload(updates, keys, coins)
    wanted = np.zeros_like(payload)
    for user in range(40):
        mechanism.encode_user(updates[user], keys.keys[user], coins[user], wanted[user])
    assert np.array_equal(payload, wanted)
    assert not over.any()


def test_signs_are_not_taken_for_fair_coins() -> None:
    """A majority that sends only minus does not make the others suspect."""
    mechanism = SignRR(64, math.inf, 1.0)
    updates = np.full((20, 64), -1.0)
    updates[:5] = 1.0
    ballots = mechanism.encode_many(updates, KEY.users(range(20)))
    assert mechanism.votes is not None
    assert mechanism.votes.fair_bits == 0
    assert not biased_bits(mechanism.votes, ballots, 0.5).any()
