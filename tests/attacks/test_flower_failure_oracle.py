"""Attack: a malicious server reads an image from the failures of training.

The server chooses the weights. With W[0, pixel] = 3e38 and a suitable bias the first logit
overflows exactly when the pixel exceeds a threshold. Training then ends in NaN, or the app raises.
If the reply shows that, each request is one noiseless comparison: binary search reads the image.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

import hushbit as hb
from flower.parts import context, policy, record, serialized, train_message
from hushbit.flower.client import HushbitMod
from hushbit.flower.records import request_entries
from hushbit.registry import description_text

PIXELS, CLASSES, LEVELS, STEPS = 64, 3, 16, 4
DIM = CLASSES * PIXELS + CLASSES
BIG, LARGEST = np.float32(3e38), float(np.finfo(np.float32).max)
IMAGES = np.random.default_rng(3).integers(0, LEVELS, (2, PIXELS))


def train_on(image: np.ndarray, failure: str) -> Callable[[dict[str, Any]], Any]:
    """One step of logistic regression in float32, which meets overflow by one of three failures."""
    x = (image / LEVELS).astype(np.float32)

    def train(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray] | str:
        with np.errstate(all="ignore"):
            logits = arrays["w"] @ x + arrays["b"]
            if failure != "NaN" and not np.isfinite(logits).all():
                if failure == "exit":
                    raise SystemExit(f"overflow in {image}")
                if failure == "error reply":
                    return f"overflow in {image}"
                raise FloatingPointError(f"overflow in {image}")
            odds = np.exp(logits - logits.max())
            slope = odds / odds.sum() - np.eye(CLASSES, dtype=np.float32)[0]
            rate = np.float32(0.1)
            return {
                "w": arrays["w"] - rate * np.outer(slope, x).astype(np.float32),
                "b": arrays["b"] - rate * slope.astype(np.float32),
            }

    return train


class Victim:
    """A client with one image and a ledger."""

    def __init__(self, folder: Path, image: np.ndarray, failure: str, **limits: Any) -> None:
        folder.mkdir()
        self.ledger, self.charged_before_training = folder / "ledger.db", True
        self.requests = self.trained = 0
        options = {"epsilon_per_bit": 1.0, "budget": 5.0, "l2_clip": 1.0} | limits
        self.app = ClientApp(mods=[HushbitMod(policy(folder, **options))])
        train = train_on(image, failure)

        @self.app.train()
        def train_user(message: Message, _: Context) -> Message:
            self.trained += 1
            self.charged_before_training &= self.charges() == self.trained
            after = train({k: np.array(a.numpy()) for k, a in message.content["arrays"].items()})
            if isinstance(after, str):
                return Message(Error(2, after), reply_to=message)
            return Message(RecordDict({"arrays": record(after)}), reply_to=message)

    def charges(self) -> int:
        return len(hb.Ledger.open(self.ledger).entries()) if self.ledger.exists() else 0

    def ask(self, weights: dict[str, np.ndarray], mechanism: hb.Mechanism, number: int) -> Any:
        """What the server sees of a reply, except the bits of the ballot."""
        key = hb.RoundKey(bytes(32), number, b"run").user(1)
        asked = request_entries(description_text(mechanism), key, ())
        reply = self.app(train_message(weights, asked), context())
        self.requests += 1
        if reply.has_error():
            return "error", reply.error.code, reply.error.reason
        array = reply.content["ballot"]["bits"]
        ballot = hb.Ballot.from_bytes(array.data)
        header = (ballot.fingerprint, ballot.round, ballot.user, ballot.bits)
        return "ballot", tuple(reply.content), array.shape, header, serialized(reply)[1]


def weights_for(pixel: int, threshold: float) -> dict[str, np.ndarray]:
    """Weights whose first logit overflows exactly when the pixel exceeds the threshold."""
    w, b = np.zeros((CLASSES, PIXELS), np.float32), np.zeros(CLASSES, np.float32)
    w[0, pixel] = BIG
    b[0] = LARGEST - float(BIG) * threshold
    return {"w": w, "b": b}


def attack(
    victim: Victim, mechanism: hb.Mechanism, twin: Victim, pixels: int
) -> tuple[np.ndarray, list[Any]]:
    """Binary search of pixels; also asks a twin with another image the same questions."""
    # The server knows how an overflow looks from a request in which every image overflows.
    overflow = victim.ask(weights_for(0, -math.inf), mechanism, 0)[0]
    twin.ask(weights_for(0, -math.inf), mechanism, 0)
    read, seen = np.zeros(pixels, int), []
    number = 1
    for pixel in range(pixels):
        low, high = 0, LEVELS - 1
        for _ in range(STEPS):
            middle = (low + high) // 2
            question = weights_for(pixel, (middle + 0.5) / LEVELS), mechanism, number
            mine, other = victim.ask(*question), twin.ask(*question)
            seen.append((mine, other))
            low, high = (middle + 1, high) if mine[0] == overflow else (low, middle)
            number += 1
        read[pixel] = low
    return read, seen


VARIANTS = {
    "strict budget": (0.005, {}),  # spent before the attack ends
    "tiny epsilon": (1e-7, {}),
    "unlimited": (0.5, {"budget": math.inf}),
    "rotated": (0.5, {"budget": math.inf, "mechanisms": ("Rotated/CPA",)}),
}


# The whole image in two cases, three pixels in the others.
CASES = [("tiny epsilon", "NaN", PIXELS), ("strict budget", "exception", PIXELS)]
CASES += [
    (variant, failure, 3)
    for variant in VARIANTS
    for failure in ("NaN", "exception", "exit", "error reply")
    if (variant, failure, PIXELS) not in CASES
]


@pytest.mark.parametrize(("variant", "failure", "pixels"), CASES)
def test_the_server_learns_nothing_from_failures(
    tmp_path: Path, variant: str, failure: str, pixels: int
) -> None:
    epsilon, limits = VARIANTS[variant]
    victims = [
        Victim(tmp_path / str(at), image, failure, **limits) for at, image in enumerate(IMAGES)
    ]
    mechanism: hb.Mechanism = hb.CPA(DIM, epsilon, 0.05)
    if variant == "rotated":
        mechanism = hb.Rotated(mechanism)
    read, seen = attack(victims[0], mechanism, victims[1], pixels)
    assert victims[0].requests == 1 + pixels * STEPS
    # Replies to two users with different images are alike, request by request.
    assert [mine for mine, _ in seen] == [other for _, other in seen]
    # A guess without information is right for one pixel in 16; a quarter of 64 pixels is six
    # standard deviations more. Three pixels are never all right: the answers are constant.
    right = (read == IMAGES[0, :pixels]).mean()
    assert right < (0.25 if pixels == PIXELS else 1.0)
    for victim in victims:
        assert victim.charged_before_training
        assert victim.charges() == victim.trained
    assert victims[0].trained == victims[1].trained
    if variant == "strict budget" and pixels == PIXELS:
        assert 0 < victims[0].trained < victims[0].requests
    else:
        assert victims[0].trained == victims[0].requests


def test_the_weights_separate_the_images() -> None:
    """Without this the attack above would be vacuous."""
    train = train_on(IMAGES[0], "NaN")
    for pixel, value in enumerate(IMAGES[0]):
        for level in range(LEVELS):
            after = train(weights_for(pixel, (level + 0.5) / LEVELS))
            assert isinstance(after, dict)
            assert np.isfinite(after["w"]).all() == (value <= level)
