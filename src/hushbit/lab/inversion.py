"""Gradient inversion: an honest-but-curious server turns one user's update back into its digit.

One step of a linear softmax model on one sample x of class y moves the weights of class k by
-g_k x and its bias by -g_k, g = p - onehot(y): the raw update holds the picture itself. From a
noisy update the server takes the matched filter  x̂ = sum_k g_k dW_k / sum_k g_k² , the best
linear unbiased estimate, and then the best linear estimate that also uses a public prior, the
mean and covariance of other people's digits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.laplace import Laplace
from hushbit.checks import positive, whole
from hushbit.coins import SeededCoins
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput, MissingExtra
from hushbit.files import write_whole
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism

Floats = NDArray[np.float64]
Release = tuple[Floats, float]
"""An update as the server sees it, and the variance of the noise on its entries."""

SECRET = bytes(range(32))
BEST_PSNR = 120.0
RADIUS = 1.0
"""Entries of -g x lie within [-1, 1] whatever the picture, so nothing is cut off."""


@dataclass(frozen=True, eq=False)
class View:
    """What the server saw, and the pictures it made of it: (digits, height, width) in [0, 1]."""

    seen: str
    pictures: Floats
    psnr_db: float
    psnr_alone_db: float


@dataclass(frozen=True, eq=False)
class Inversion:
    """The true digits and every view of them."""

    dataset: str
    epsilon_per_bit: float
    digits: Floats
    views: tuple[View, ...]

    def rows(self) -> list[dict[str, Any]]:
        """PSNR of every view, with the public prior and without, as plain data."""
        return [
            {"seen": view.seen, "psnr_db": view.psnr_db, "psnr_alone_db": view.psnr_alone_db}
            for view in self.views
        ]


@dataclass(frozen=True, eq=False)
class Prior:
    """What everybody knows about digits before seeing an update."""

    mean: Floats
    covariance: Floats

    def refined(self, estimate: Floats, noise: float) -> Floats:
        """Best linear estimate: mean + S (S + noise I)^-1 (estimate - mean)."""
        total = self.covariance + noise * np.eye(self.mean.size)
        gain = np.linalg.solve(total, self.covariance).T
        return np.asarray(self.mean + gain @ (estimate - self.mean))


def invert(
    dataset: str = "digits", *, epsilon_per_bit: float,
    ballots: tuple[int, ...] = (1, 10, 100, 1000), digits: int = 6, seed: int = 0,
    folder: Path | None = None,
) -> Inversion:  # fmt: skip
    """Attack some users' digits: raw update, Laplace update, and T CPA ballots of the same update.

    The Laplace update spends epsilon_per_bit on every entry, as CPA does on every bit. The server
    is given the label, which its filter needs, so this is the strongest server of its kind.
    """
    epsilon = positive("epsilon_per_bit", epsilon_per_bit)
    shown = whole("digits", digits, 1, 100)
    counts = tuple(whole("ballots", count, 1) for count in ballots)
    if not counts or list(counts) != sorted(set(counts)):
        raise InvalidInput(f"ballots must be ascending numbers such as (1, 10); got {ballots!r}")
    coins = SeededCoins(whole("seed", seed, 0))
    images, labels, public = _data(dataset, shown, folder)
    flat = images.reshape(shown, -1)
    prior = Prior(public.mean(axis=0), np.cov(public.T))
    residuals = [_residual(int(label)) for label in labels]
    updates = [linear_update(x, g) for x, g in zip(flat, residuals, strict=True)]
    raw, *noisy = [
        _view(name, images, found, residuals, prior)
        for name, found in _releases(updates, epsilon, counts, coins).items()
    ]
    guess = np.tile(prior.mean, (shown, 1))
    quality = psnr(flat, guess)
    nothing = View("nothing: the average digit", guess.reshape(images.shape), quality, quality)
    return Inversion(dataset, epsilon, images, (raw, nothing, *noisy))


def _releases(
    updates: list[Floats], epsilon: float, counts: tuple[int, ...], coins: SeededCoins
) -> dict[str, list[Release]]:
    """What the server sees of each user, by name."""
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
    """sum_k g_k dW_k / sum_k g_k² with the sign of the step: exact for a raw update."""
    weights = update[: -residual.size].reshape(residual.size, -1)
    return np.asarray(-(residual @ weights) / float(residual @ residual))


def released(
    mechanism: Mechanism, update: Floats, counts: tuple[int, ...], coins: SeededCoins
) -> list[Release]:
    """Average of the first T decoded ballots of one user, a round each, and its noise variance."""
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
    """Mean over pictures of -10 log10 of the mean squared error, values in [0, 1]; at most 120."""
    error = np.maximum(((truth - guess) ** 2).mean(axis=1), 10 ** (-BEST_PSNR / 10))
    return float(np.mean(-10 * np.log10(error)))


def draw(found: Inversion, path: str | Path) -> None:
    """Write all pictures side by side, one row for each digit, PSNR above each column."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Drawing needs matplotlib; run: pip install 'hushbit[lab]'") from None
    target = Path(path)
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise InvalidInput(f"the picture goes to a .png in an existing folder; got {target}")
    columns = [("the user's digit", found.digits, "")]
    columns += [(view.seen, view.pictures, _quality(view)) for view in found.views]
    rows = min(6, len(found.digits))
    figure = Figure(figsize=(1.45 * len(columns), 1.3 * rows + 1.25), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"One user's digit as the server reconstructs it, epsilon {found.epsilon_per_bit:g} per "
        "bit or entry\n(best linear estimate with a public prior; mean PSNR over the digits)"
    )
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for column, (name, pictures, quality) in enumerate(columns):
        axes[0, column].set_title(f"{_two_lines(name)}\n{quality}", fontsize=9)
        for row in range(rows):
            axes[row, column].imshow(pictures[row], cmap="gray_r", vmin=0, vmax=1)
            axes[row, column].set_xticks([])
            axes[row, column].set_yticks([])
    write_whole(target, lambda file: figure.savefig(file, format="png", dpi=120))


def _quality(view: View) -> str:
    return "exact" if view.psnr_db >= BEST_PSNR else f"{view.psnr_db:.1f} dB"


def _two_lines(name: str) -> str:
    return name.replace(": ", ":\n") if ": " in name else name.replace(" ", "\n", 1)


def _view(
    seen: str, truth: Floats, found: list[Release], residuals: list[Floats], prior: Prior
) -> View:
    """Pixels are known to lie in [0, 1], so the server cuts its estimates there."""
    alone, best = [], []
    for (update, noise), residual in zip(found, residuals, strict=True):
        alone.append(matched_filter(update, residual))
        power = float(residual @ residual)
        best.append(prior.refined(alone[-1], noise / power) if noise else alone[-1])
    flat = truth.reshape(len(truth), -1)
    single, pictures = (np.clip(np.stack(part), 0, 1) for part in (alone, best))
    return View(seen, pictures.reshape(truth.shape), psnr(flat, pictures), psnr(flat, single))


def _residual(label: int) -> Floats:
    """p - onehot(y) of a model that starts at zero, where p is uniform; the server knows both."""
    return np.asarray(0.1 - np.eye(10)[label])


def _data(name: str, count: int, folder: Path | None) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Pictures of test users, one class after the other, and public pictures of other people."""
    from hushbit.fl.data import load

    data = load(name, folder)
    if data.classes != 10 or data.input_shape[0] != 1:
        raise InvalidInput(f"inversion needs ten classes of grey pictures; {name} has others")
    each = count // 10 + 1
    chosen = np.concatenate([np.flatnonzero(data.test_y == d)[:each] for d in range(10)])
    spread = chosen[np.linspace(0, len(chosen) - 1, count).round().astype(int)]
    top = float(max(data.train_x.max(), 1))
    public = data.train_x[:5000].reshape(min(5000, len(data.train_x)), -1) / top
    return data.test_x[spread, 0] / top, data.test_y[spread], np.asarray(public)
