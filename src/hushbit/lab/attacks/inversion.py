"""Gradient inversion: an honest-but-curious server reconstructs a digit from one user's update.

One step of a linear softmax model on one sample x of class y changes the weights of class k by
-g_k x and its bias by -g_k, g = p - onehot(y): the raw update contains the image itself. From a
noisy update the server computes the matched filter  x̂ = -sum_k g_k dW_k / sum_k g_k² , the best
linear unbiased estimate, and then the best linear estimate with a public prior: the mean and
covariance of other people's digits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hushbit.baselines.laplace import Laplace
from hushbit.checks import Floats, Ints, check_int, check_positive
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput, MissingExtra
from hushbit.mechanism import Mechanism
from hushbit.wire.coins import SeededCoins
from hushbit.wire.files import write_atomic
from hushbit.wire.keys import RoundKey

Release = tuple[Floats, float]
"""A released update, and the variance of the noise on its entries."""

SECRET = bytes(range(32))
MAX_PSNR = 120.0
RADIUS = 1.0
"""Entries of -g x lie within [-1, 1] for any image, so nothing is clipped."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The images (digits, height, width) in [0, 1] that the server reconstructs from a release.

    `seen` names the release; `psnr_alone_db` is the quality without the public prior.
    """

    seen: str
    images: Floats
    psnr_db: float
    psnr_alone_db: float


@dataclass(frozen=True, eq=False)
class Inversion:
    """The true digits and every reconstruction of them."""

    dataset: str
    epsilon_per_bit: float
    digits: Floats
    reconstructions: tuple[Reconstruction, ...]

    def rows(self) -> list[dict[str, Any]]:
        """PSNR of every reconstruction, with the public prior and without, as plain data."""
        return [
            {"seen": view.seen, "psnr_db": view.psnr_db, "psnr_alone_db": view.psnr_alone_db}
            for view in self.reconstructions
        ]


def refined(estimate: Floats, noise: float, mean: Floats, covariance: Floats) -> Floats:
    """Best linear estimate with a public prior: mean + S (S + noise I)^-1 (estimate - mean)."""
    gain = np.linalg.solve(covariance + noise * np.eye(mean.size), covariance).T
    return np.asarray(mean + gain @ (estimate - mean))


def invert(
    dataset: str = "digits",
    *,
    epsilon_per_bit: float,
    ballots: tuple[int, ...] = (1, 10, 100, 1000),
    digits: int = 6,
    seed: int = 0,
) -> Inversion:
    """Reconstruct digits from raw updates, Laplace updates, and T CPA ballots of the same update.

    The Laplace update spends epsilon_per_bit on every entry, as CPA does on every bit. The server
    has the label, which the matched filter needs, so this is the strongest server of its kind.
    """
    epsilon = check_positive("epsilon_per_bit", epsilon_per_bit)
    shown = check_int("digits", digits, 1, 100)
    counts = tuple(check_int("ballots", count, 1) for count in ballots)
    if not counts or list(counts) != sorted(set(counts)):
        raise InvalidInput(f"ballots must be ascending numbers such as (1, 10); got {ballots!r}")
    coins = SeededCoins(seed)
    images, labels, public = _data(dataset, shown)
    flat = images.reshape(shown, -1)
    prior = public.mean(axis=0), np.cov(public.T)
    residuals = [_residual(int(label)) for label in labels]
    updates = [linear_update(x, g) for x, g in zip(flat, residuals, strict=True)]
    raw, *noisy = [
        _reconstruction(name, images, found, residuals, prior)
        for name, found in _releases(updates, epsilon, counts, coins).items()
    ]
    guess = np.tile(prior[0], (shown, 1))
    quality = psnr(flat, guess)
    nothing = Reconstruction(
        "nothing: the average digit", guess.reshape(images.shape), quality, quality
    )
    return Inversion(dataset, epsilon, images, (raw, nothing, *noisy))


def _releases(
    updates: list[Floats], epsilon: float, counts: tuple[int, ...], coins: SeededCoins
) -> dict[str, list[Release]]:
    """What each user releases to the server, by name."""
    dim = updates[0].size
    cpa, laplace = CPA(dim, epsilon, RADIUS), Laplace(dim, epsilon, RADIUS)
    seen: dict[str, list[Release]] = {"raw update": [(update, 0.0) for update in updates]}
    seen["Laplace update"] = [released(laplace, update, (1,), coins)[0] for update in updates]
    by_user = [released(cpa, update, counts, coins) for update in updates]
    for place, count in enumerate(counts):
        name = f"{count} CPA ballot{'s' * (count > 1)}"
        seen[name] = [found[place] for found in by_user]
    return seen


def linear_update(x: Floats, residual: Floats) -> Floats:
    """The step of a linear model, weights class by class, then biases: -(g ⊗ x), -g."""
    return np.concatenate([-np.outer(residual, x).ravel(), -residual])


def matched_filter(update: Floats, residual: Floats) -> Floats:
    """-sum_k g_k dW_k / sum_k g_k²: exact for a raw update."""
    weights = update[: -residual.size].reshape(residual.size, -1)
    return np.asarray(-(residual @ weights) / float(residual @ residual))


def released(
    mechanism: Mechanism, update: Floats, counts: tuple[int, ...], coins: SeededCoins
) -> list[Release]:
    """Average of the first T decoded ballots of one user, one per round, and its noise variance."""
    total, found = np.zeros(update.size), []
    variance = 0.0
    for round_number in range(counts[-1]):
        key = RoundKey(SECRET, round_number)
        tally = mechanism.tally(key)
        tally.add(mechanism.encode(update, key.user(0), coins))
        estimate = mechanism.estimate(tally)
        total += estimate.mean
        variance += float(estimate.variance.mean())
        sent = round_number + 1
        if sent in counts:
            found.append((total / sent, variance / sent**2))
    return found


def psnr(truth: Floats, guess: Floats) -> float:
    """Mean over images of -10 log10 of the mean squared error, values in [0, 1]; at most 120."""
    error = np.maximum(((truth - guess) ** 2).mean(axis=1), 10 ** (-MAX_PSNR / 10))
    return float(np.mean(-10 * np.log10(error)))


def draw(found: Inversion, path: str | Path) -> None:
    """Write all images side by side as PNG: one row per digit, PSNR above each column."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Drawing needs matplotlib; run: pip install 'hushbit[lab]'") from None
    target = Path(path)
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise InvalidInput(f"path must be a .png file in an existing folder; got {target}")
    columns = [("the user's digit", found.digits, "")]
    for view in found.reconstructions:
        quality = "exact" if view.psnr_db >= MAX_PSNR else f"{view.psnr_db:.1f} dB"
        columns.append((view.seen, view.images, quality))
    rows = min(6, len(found.digits))
    figure = Figure(figsize=(1.45 * len(columns), 1.3 * rows + 1.25), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"One user's digit as the server reconstructs it, epsilon {found.epsilon_per_bit:g} per "
        "bit or entry\n(best linear estimate with a public prior; mean PSNR over the digits)"
    )
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for column, (name, images, quality) in enumerate(columns):
        two_lines = name.replace(": ", ":\n") if ": " in name else name.replace(" ", "\n", 1)
        axes[0, column].set_title(f"{two_lines}\n{quality}", fontsize=9)
        for row in range(rows):
            axes[row, column].imshow(images[row], cmap="gray_r", vmin=0, vmax=1)
            axes[row, column].set_xticks([])
            axes[row, column].set_yticks([])
    write_atomic(target, lambda file: figure.savefig(file, format="png", dpi=120))


def _reconstruction(
    seen: str,
    truth: Floats,
    found: list[Release],
    residuals: list[Floats],
    prior: tuple[Floats, Floats],
) -> Reconstruction:
    """Images from releases; estimates are clipped to [0, 1], the range of pixels."""
    alone, best = [], []
    for (update, noise), residual in zip(found, residuals, strict=True):
        alone.append(matched_filter(update, residual))
        power = float(residual @ residual)
        best.append(refined(alone[-1], noise / power, *prior) if noise else alone[-1])
    flat = truth.reshape(len(truth), -1)
    single, images = (np.clip(np.stack(part), 0, 1) for part in (alone, best))
    return Reconstruction(seen, images.reshape(truth.shape), psnr(flat, images), psnr(flat, single))


def _residual(label: int) -> Floats:
    """p - onehot(y) of a model that starts at zero, where p is uniform; both are public."""
    return np.asarray(0.1 - np.eye(10)[label])


def _data(name: str, count: int) -> tuple[Floats, Ints, Floats]:
    """Images of test users, one class after the other, and public images of other people."""
    from hushbit.lab.sim.datasets import load_dataset

    data = load_dataset(name)
    if data.classes != 10 or data.input_shape[0] != 1:
        raise InvalidInput(f"inversion needs ten classes of grey images; dataset {name} differs")
    each = count // 10 + 1
    chosen = np.concatenate([np.flatnonzero(data.test_y == d)[:each] for d in range(10)])
    spread = chosen[np.linspace(0, len(chosen) - 1, count).round().astype(int)]
    top = float(max(data.train_x.max(), 1))
    public = data.train_x[:5000].reshape(min(5000, len(data.train_x)), -1) / top
    return data.test_x[spread, 0] / top, data.test_y[spread], np.asarray(public)
