"""Which bits to send: error of one user and entry for points, lattices, stages and their epsilons.

All schemes cover the same Gaussian entries of unit spread: the hull of their points holds blocks up
to `reach` times the root of their length. Errors are exact (`planning.noise_per_user`).
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from hushbit.cpa import CPA, NestedCPA
from hushbit.files import write_whole
from hushbit.lab.plots import COLOURS
from hushbit.privacy.planning import noise_per_user

REACH = 3.0
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
LATTICES = {"A2": (2, 4), "D4": (4, 16), "E8": (8, 16)}


@dataclass(frozen=True)
class Way:
    """One way to spend epsilon on an entry."""

    family: str
    name: str
    bits_per_weight: float
    epsilon_per_weight: float
    error: float


def ways(epsilon: float) -> list[Way]:
    """Every way at a total of epsilon for each weight, whatever the number of bits."""
    made = [_scalar(points, epsilon) for points in (2, 4, 8, 16)]
    made += [_blocks(lattice, epsilon) for lattice in LATTICES]
    for counts in ((2, 2), (2, 4), (4, 4), (2, 2, 2)):
        even = tuple(epsilon / len(counts) for _ in counts)
        made.append(_nested(counts, even, "even split"))
    splits = [(epsilon * share, epsilon * (1 - share)) for share in SHARES]
    made.append(min((_nested((2, 2), split, "best split") for split in splits),
                    key=lambda way: way.error))  # fmt: skip
    return made


def ways_per_bit(epsilon: float) -> list[Way]:
    """Every way at epsilon for each bit: more bits cost more."""
    made = [_scalar(points, epsilon) for points in (2, 4, 8, 16)]
    for lattice, (size, _) in LATTICES.items():
        made.append(_blocks(lattice, epsilon / size))
    for counts in ((2, 2), (2, 4), (2, 2, 2)):
        made.append(_nested(counts, tuple(epsilon for _ in counts), "each bit"))
    return made


def _scalar(points: int, epsilon: float) -> Way:
    error = noise_per_user(CPA(1, epsilon, REACH, points=points), 1.0)
    return Way("points on a line", f"{points} points", 1.0, epsilon, error)


def _blocks(lattice: str, epsilon: float) -> Way:
    """One bit for a block: it may spend the epsilon of all its entries."""
    size, points = LATTICES[lattice]
    per_bit = epsilon * size
    unit = CPA(size, per_bit, 1.0, lattice=lattice, points=points)
    made = unit.at_scale(REACH * size**0.5 / unit.unbiased_radius)
    name = f"{points} points of {lattice}"
    return Way("one bit for a block", name, 1 / size, epsilon, noise_per_user(made, 1.0))


def _nested(counts: tuple[int, ...], epsilons: tuple[float, ...], split: str) -> Way:
    made = NestedCPA(1, epsilons, REACH, stages=counts)
    name = f"{' x '.join(map(str, counts))}, {split}"
    return Way("stages", name, float(len(counts)), sum(epsilons), noise_per_user(made, 1.0))


def plot_ways(target: Path, epsilons: tuple[float, ...]) -> None:
    """Error against epsilon, at equal total epsilon and at equal epsilon per bit, as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasSVG(figure)
    titles = ("equal epsilon for each weight", "equal epsilon for each bit")
    for axes, spend, title in zip(figure.subplots(1, 2), (ways, ways_per_bit), titles, strict=True):
        found = [spend(epsilon) for epsilon in epsilons]
        for name, look in zip([way.name for way in found[0]], _looks(), strict=False):
            lines = [next(way.error for way in made if way.name == name) for made in found]
            axes.plot(epsilons, lines, label=name, color=look[0], ls=look[1])
        axes.set(xscale="log", yscale="log", xlabel="epsilon", title=title)
        axes.set_ylabel("error of one user and entry, in units of its variance")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    write_whole(target, lambda file: figure.savefig(
        file, format="svg", metadata={"Date": None, "Creator": None}
    ))  # fmt: skip


def _looks() -> list[tuple[str, str]]:
    return [(colour, dash) for dash, colour in itertools.product(("-", "--"), COLOURS)]
