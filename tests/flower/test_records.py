"""Requests and ballots in Flower messages: exactly one request, at most the allowed bytes."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

import hushbit as hb
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.flower.records import (
    BALLOT_RECORD,
    ballot_record,
    read_ballot,
    read_request,
    request_entries,
)
from hushbit.registry import description_text

MECHANISM = hb.CPA(14, 1.0, 0.05)
KEY = hb.RoundKey(bytes(32), 2).user(9)


def request(mechanism: hb.Mechanism = MECHANISM) -> ConfigRecord:
    return ConfigRecord(request_entries(description_text(mechanism), KEY, ()))


def test_a_message_has_exactly_one_request() -> None:
    found = read_request(RecordDict({"config": request(), "more": ConfigRecord({"lr": 0.1})}))
    assert (found.description, found.key) == (MECHANISM.description, KEY)
    other = request(hb.CPA(14, 0.5, 0.05))
    for content in ({}, {"one": request(), "two": other}, {"one": other, "two": request()}):
        with pytest.raises(InvalidInput):
            read_request(RecordDict(content))


def test_a_ballot_has_at_most_the_allowed_bytes() -> None:
    ballot = MECHANISM.encode(np.zeros(14), KEY)
    content = RecordDict({BALLOT_RECORD: ballot_record(ballot, KEY)})
    size = len(ballot.to_bytes(KEY))
    assert read_ballot(content, size).to_bytes(KEY) == ballot.to_bytes(KEY)
    with pytest.raises(RefusedBallot, match=f"at most {size - 1} bytes; got {size}") as caught:
        read_ballot(content, size - 1)
    assert caught.value.reason == "length"
