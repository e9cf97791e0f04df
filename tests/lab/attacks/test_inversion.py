"""The raw update contains the image; one ballot does not; many ballots of one user do."""

import math
from pathlib import Path

import numpy as np
import pytest

from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.inversion import (
    Inversion,
    draw,
    invert,
    linear_update,
    matched_filter,
    psnr,
    refined,
    released,
)
from hushbit.lab.cli import main
from hushbit.wire.coins import SeededCoins


@pytest.fixture(scope="module")
def found() -> Inversion:
    return invert("digits", epsilon_per_bit=0.5, ballots=(1, 30, 300), digits=4)


def test_the_linear_update_equals_autograd() -> None:
    torch = pytest.importorskip("torch")
    x, label = np.linspace(0, 1, 6), 3
    model = torch.nn.Linear(6, 10).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    scores = model(torch.from_numpy(x)[None])
    torch.nn.functional.cross_entropy(scores, torch.tensor([label])).backward()
    step = np.concatenate([-model.weight.grad.numpy().ravel(), -model.bias.grad.numpy()])
    residual = 0.1 - np.eye(10)[label]
    assert np.allclose(linear_update(x, residual), step)
    assert np.allclose(matched_filter(step, residual), x)


def test_weights_divided_by_the_bias_are_the_image() -> None:
    x, residual = np.linspace(0, 1, 6), 0.1 - np.eye(10)[0]
    update = linear_update(x, residual)
    assert np.allclose(update[:6] / update[60], x)


def test_the_raw_update_reveals_the_digit(found: Inversion) -> None:
    raw = found.reconstructions[0]
    assert raw.seen == "raw update"
    assert np.allclose(raw.images, found.digits)
    assert raw.psnr_db == 120.0


def test_one_ballot_reveals_little_and_many_reveal_the_digit(found: Inversion) -> None:
    quality = {row["seen"]: row["psnr_db"] for row in found.rows()}
    nothing = quality["nothing: the average digit"]
    assert abs(quality["1 CPA ballot"] - nothing) < 1.5
    assert quality["1 CPA ballot"] < quality["30 CPA ballots"] < quality["300 CPA ballots"]
    assert quality["300 CPA ballots"] > nothing + 4


def test_the_prior_weighs_the_estimate_by_its_noise() -> None:
    mean, covariance = np.array([0.2, 0.4]), np.diag([0.1, 0.0])
    estimate = np.array([0.5, 0.9])
    assert np.allclose(refined(estimate, 0.1, mean, covariance), [0.35, 0.4])
    assert np.allclose(refined(estimate, 1e12, mean, covariance), mean)


def test_the_variance_of_released_updates_is_exact() -> None:
    """3 000 entries: the mean square spreads by 2.6 %; 5 standard deviations are allowed."""
    update = np.zeros(3000)
    for mean, variance in released(CPA(3000, 1.0, 1.0), update, (1, 4), SeededCoins(1)):
        assert float((mean**2).mean()) == pytest.approx(variance, rel=0.13)


def test_psnr_of_known_errors() -> None:
    assert psnr(np.zeros((1, 4)), np.full((1, 4), 0.1)) == pytest.approx(20.0)
    assert psnr(np.zeros((1, 4)), np.zeros((1, 4))) == 120.0


def test_draw_writes_a_png(found: Inversion, tmp_path: Path) -> None:
    target = tmp_path / "pictures.png"
    draw(found, target)
    assert target.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path / "pictures.txt", tmp_path / "missing" / "pictures.png"):
        with pytest.raises(InvalidInput):
            draw(found, wrong)


def test_the_audit_command_draws_and_prints(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: Inversion,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hushbit.lab.attacks.inversion.invert", lambda *_, **__: found)
    target = tmp_path / "pictures.png"
    with pytest.raises(SystemExit) as stopped:
        main(["audit", "--inversion", str(target)])
    assert not stopped.value.code
    assert target.exists()
    assert "raw update" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon_per_bit": 0.0},
        {"epsilon_per_bit": math.nan},
        {"ballots": ()},
        {"ballots": (10, 1)},
        {"ballots": (0,)},
        {"digits": 0},
        {"digits": 2.5},
        {"dataset": "letters"},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        invert(**({"epsilon_per_bit": 0.5} | wrong))  # type: ignore[arg-type]
