"""What a mechanism wraps: a norm vote around a rotation around points."""

from dataclasses import replace

from hushbit.ballot import Ballots
from hushbit.mechanism import Mechanism
from hushbit.rotation import Rotated
from hushbit.tuning.norm_vote import NormVote


def without_vote(mechanism: Mechanism) -> Mechanism:
    """The mechanism without a norm vote."""
    return mechanism.inner if isinstance(mechanism, NormVote) else mechanism


def bare(mechanism: Mechanism) -> Mechanism:
    """The mechanism of points itself, without norm vote and rotation."""
    mechanism = without_vote(mechanism)
    return mechanism.inner if isinstance(mechanism, Rotated) else mechanism


def is_rotated(mechanism: Mechanism) -> bool:
    """Whether ballots speak of rotated updates."""
    return isinstance(without_vote(mechanism), Rotated)


def votes_off(mechanism: Mechanism, ballots: Ballots) -> Ballots:
    """The ballots as those of the mechanism without a norm vote."""
    if not isinstance(mechanism, NormVote):
        return ballots
    inner = mechanism.inner
    payload, _ = mechanism.parts(ballots.payload)
    return replace(ballots, fingerprint=inner.fingerprint, bits=inner.payload_bits, payload=payload)
