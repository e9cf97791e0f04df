"""A batch of keys has one round and one secret, because its users share one rotation."""

import numpy as np
import pytest

import hushbit as hb

ONE, TWO = hb.RoundKey(bytes(range(32)), 1), hb.RoundKey(bytes(32), 1)


def test_keys_of_two_secrets_are_refused() -> None:
    with pytest.raises(hb.InvalidInput):
        hb.UserKeys.stack([ONE.user(1), TWO.user(2)])
    with pytest.raises(hb.InvalidInput):
        hb.UserKeys.stack([ONE.user(1), ONE.user(2), TWO.user(3)])


def test_updates_cannot_be_encoded_with_keys_of_two_secrets() -> None:
    mechanism = hb.Rotated(hb.CPA(8, 1.0, 1.0))
    with pytest.raises(hb.InvalidInput):
        mechanism.encode_many(np.zeros((2, 8)), [ONE.user(1), TWO.user(2)])


def test_a_batch_has_the_rotation_of_its_keys() -> None:
    for key in (ONE, TWO):
        assert hb.UserKeys.stack([key.user(1), key.user(2)]).rotation == key.user(1).rotation
