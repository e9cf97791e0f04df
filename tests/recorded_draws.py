"""The private keystream blocks that one ballot draws. Run it in a process without Numba.

`blocks8` computes all keystream, so recording its calls under the key of the private coins shows
every block of (tag, stage, third word of the nonce, counter) that a ballot draws. The one stream
that is read word by word is that of the lower halves of coins: its words are recorded instead.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.baselines import MVU, JoPEQ, Laplace, SignRR, WholeLaplace
from hushbit.kernels import HAVE_NUMBA, chacha, encode, words
from hushbit.mechanism import Mechanism
from hushbit.wrappers import NormVote

COIN = np.arange(1, 9, dtype=np.uint32)
KEY = hb.RoundKey(bytes(32), 2)


class Recorder:
    """Counts how often each private block, or word of a lower half, is drawn."""

    def __init__(self) -> None:
        assert not HAVE_NUMBA, "compiled kernels cannot be recorded"
        self.drawn: Counter[tuple[int, ...]] = Counter()
        self.pause = False
        self._blocks8, self._compare = chacha.blocks8, encode.compare_exactly
        self._flag = encode.flag_below_threshold
        for module in (chacha, encode, words):
            module.blocks8 = self.blocks8
        encode.compare_exactly = self.compare_exactly
        encode.flag_below_threshold = self.flag_below_threshold

    def blocks8(self, states: Any, out: Any) -> None:
        rows = states.reshape(16, 8)
        if not self.pause and np.array_equal(rows[4:12, 0], COIN):
            nonce = tuple(int(word) for word in rows[13:16, 0])
            self.drawn.update((*nonce, int(counter)) for counter in rows[12])
        self._blocks8(states, out)

    def compare_exactly(self, x: float, upper: float, vote: int, *rest: Any) -> bool:
        self.drawn[encode.COIN_TAG, 0, 1, 0, vote] += 1
        self.pause = True
        try:
            return self._compare(x, upper, vote, *rest)
        finally:
            self.pause = False

    def flag_below_threshold(self, x: Any, *rest: Any) -> None:
        """Leaves every vote undecided, so that all lower halves are drawn."""
        self._flag(x, *rest)
        rest[-1][:] = 1

    def of(self, mechanism: Mechanism) -> Counter[tuple[int, ...]]:
        """The private draws of one ballot."""
        self.drawn.clear()
        update = np.linspace(-0.5, 0.5, mechanism.dim)[None]
        mechanism.encode_payload(update, KEY.users([1]), COIN[None])
        return self.drawn.copy()


def leaves(dim: int) -> Iterator[Mechanism]:
    """Every way to draw: kernels, roundings, lattices, stages and baselines."""
    cpa, nested = partial(hb.CPA, dim, 0.5, 1.0), partial(hb.NestedCPA, dim, 0.5, 1.0)
    yield cpa()
    yield cpa(points=4)
    yield cpa(points=3, rounding="dithered")
    yield cpa(points=2, rounding="subtractive")
    yield cpa(points=2, words="uniform")
    yield cpa(points=7, lattice="A2")
    yield nested(stages=(2, 2, 4))
    yield nested(stages=(3, 3))
    yield nested(stages=(7, 4), lattice="A2")
    yield nested(stages=(2, 2), rounding="subtractive")
    yield SignRR(dim, 0.5, step=1.0)
    yield SignRR(dim, 0.5, step=1.0, stochastic=True)
    yield MVU(dim, 0.5, 1.0)
    yield Laplace(dim, 0.5, 1.0)
    yield Laplace(dim, 0.5, preset="authors")
    yield WholeLaplace(dim, 0.5, 1.0)
    yield JoPEQ(dim, 0.5, 1.0)


def wrappings(mechanism: Mechanism, depth: int) -> Iterator[Mechanism]:
    """The mechanism in all sequences of up to `depth` wrappers."""
    if depth and isinstance(mechanism, hb.CPA) and not mechanism.quantizer.uses_dither:
        subset = hb.Subset(mechanism, (mechanism.blocks + 1) // 2)
        yield from wrappings(subset, depth - 1)
    for length in range(depth + 1):
        for kinds in itertools.product(
            (hb.Rotated, partial(NormVote, level=1.0, epsilon=0.5)), repeat=length
        ):
            made = mechanism
            for kind in kinds:
                made = kind(made)
            yield made


def main() -> None:
    """Print a list of [mechanism, number of private draws, draws made twice]."""
    recorder = Recorder()
    deep = [hb.CPA(9, 0.5, 1.0, words="uniform"), hb.NestedCPA(9, 0.5, 1.0, stages=(3, 3))]
    cases = itertools.chain(
        (made for leaf in deep for made in wrappings(leaf, 4)),
        (NormVote(hb.Rotated(leaf), 1.0, 0.5) for leaf in leaves(140)),
        wrappings(hb.AutoCPA(9, 100, epsilon_per_bit=0.5), 1),
    )
    found = []
    for made in cases:
        drawn = recorder.of(made)
        twice = [position for position, times in drawn.items() if times > 1]
        found.append([repr(made), sum(drawn.values()), twice])
    print(json.dumps(found))
