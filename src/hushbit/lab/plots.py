"""Pictures of runs."""

from pathlib import Path
from typing import Any

from hushbit.files import write_whole

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
DASHES = ("-", "--", "-.")


def plot_runs(histories: dict[str, list[dict[str, Any]]], target: Path, title: str) -> None:
    """Accuracy and SNR by round, one line for each run, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, (name, rows) in enumerate(histories.items()):
        # Both change from line to line, so that a run on top of an equal one hides nothing.
        look = {"color": COLOURS[number % len(COLOURS)], "ls": DASHES[number % len(DASHES)]}
        tested = [row for row in rows if row.get("test_accuracy") is not None]
        left.plot([row["round"] for row in tested], [100 * row["test_accuracy"] for row in tested],
                  label=name, **look)  # fmt: skip
        noisy = [row for row in rows if abs(float(row["snr_db"])) < 1000]
        if noisy:
            right.plot([row["round"] for row in noisy], [row["snr_db"] for row in noisy],
                       label=name, **look)  # fmt: skip
    left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    right.set(xlabel="round", ylabel="SNR of the mean update (dB)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.suptitle(title)
    write_whole(target, lambda file: figure.savefig(file, format="png", dpi=110))
