"""Small results and runs for the tests of the report."""

import json
import math

from hushbit.lab.experiments.results import Axes, Cell, Check, Metric, PrivacyLine, Result
from hushbit.lab.sim.settings import Settings

NASTY = '<script>alert("x")</script><img src=x onerror=alert(1)>'
PUBLISHED = {
    10: {"CPA": 49, "CPA without noise": 60},
    100: {"CPA": 81, "CPA without noise": 84},
    1000: {"CPA": 85, "CPA without noise": 87},
}


def cell(scheme, variant, where, metric, mean, width, x=None):
    seeds = () if width == 0 else (mean - width, mean, mean + width)
    return Cell(scheme, variant, where, metric, mean, mean - width, mean + width, seeds, x)


def table_result(**changes):
    """A result in the shape of the nested table: places, schemes, two metrics."""
    cells = []
    for users, row in PUBLISHED.items():
        where = {"users": users, "model": "linear"}
        for scheme, accuracy in row.items():
            cells += [
                cell(scheme, "published", where, "accuracy", float(accuracy), 0.0),
                cell(scheme, "authors", where, "accuracy", accuracy - 0.8, 0.6),
                cell(scheme, "corrected", where, "accuracy", accuracy + 1.25, 0.4),
                cell(scheme, "published", where, "snr_db", accuracy / 10 - 8, 0.0),
                cell(scheme, "corrected", where, "snr_db", accuracy / 10 - 4.5, 0.2),
            ]
    return make("nested", "Nested quantization", "Table III", "table", cells, **changes)


def lines_result(points=5, **changes):
    """A result in the shape of a figure: schemes over x, for two numbers of users."""
    cells = []
    for users in (100, 1000):
        for place, scheme in enumerate(("CPA", "Laplace", "signSGD+RR")):
            for variant, width in (("published", 0.0), ("authors", 0.5), ("corrected", 0.3)):
                cells += [
                    cell(
                        scheme,
                        variant,
                        {"users": users},
                        "snr_db",
                        users / 100 + 3 * step - 7 * place + width,
                        width,
                        0.5 * step,
                    )
                    for step in range(1, points + 1)
                ]
    return make("snr-epsilon", "SNR against epsilon", "Figure 3", "lines", cells, **changes)


def make(name, title, paper, kind, cells, /, **changes):
    metrics = (Metric("accuracy", "test accuracy (%)"), Metric("snr_db", "SNR (dB)"))
    lines = kind == "lines"
    given = {
        "name": name,
        "title": title,
        "paper": paper,
        "quick": False,
        "command": f"hushbit reproduce {name} --out results",
        "seeds": (1, 2, 3),
        "about": "A linear model learns digits from users who send a bit per weight.",
        "choices": ("The paper is silent on the learning rate: chosen on a separate seed.",),
        "privacy": (PrivacyLine("CPA", "epsilon 0.5", "epsilon 3,925", "epsilon 117,750"),),
        "axes": Axes(
            kind, "epsilon" if lines else None, "epsilon per bit" if lines else "", False, metrics
        ),
        "cells": tuple(cells),
        "checks": (
            Check("authors within 3 points of the published, K = 1000", True, "84.2 against 85"),
            Check("SNR of corrected at least 3 dB above authors", False, "2.1 dB at K = 100"),
        ),
        "notes": (),
        "environment": {"hushbit": "0.1.0", "numpy": "2.4.6"},
        "seconds": 123.4,
    }
    return Result(**{**given, **changes})


def run_folder(folder, mechanism="cpa", rounds=12, finished=True, level=0.8, **changes):
    """A run folder with made-up figures, in the format of `hushbit run`."""
    private = mechanism != "fedavg"
    given = {"mechanism": mechanism, "rounds": rounds, "users": 50, **changes}
    given |= {"epsilon_per_bit": 0.5} if private else {}
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(Settings(**given).resolved().to_toml())
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11.7", "numpy": "2.4.6", "guarantee": "epsilon 0.5 per bit"})
    )
    rows = [metrics_row(number, level, private) for number in range(1, rounds + 1)]
    kept = rows if finished else rows[: rounds // 2]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    if finished:
        (folder / "summary.json").write_text(json.dumps(summary(rows, private)))
    return folder


def metrics_row(number, level, private):
    accuracy = level * (1 - math.exp(-number / 4)) if number % 2 == 0 else None
    return {
        "round": number,
        "users": 50,
        "bytes_up": 6100 if private else 130_000,
        "bytes_down": 134_000,
        "training_loss": 2.3 * math.exp(-number / 9),
        "test_accuracy": accuracy,
        "backdoor_rate": None,
        "snr_db": 3.0 - number / 10 if private else "inf",
        "mse": 1e-4 / number if private else 0.0,
    }


def summary(rows, private):
    bit = 0.5 if private else "inf"
    message, run = (325.0, 325.0 * len(rows)) if private else ("inf", "inf")
    return {
        "test_accuracy": rows[-1]["test_accuracy"] or 0.5,
        "snr_db": rows[-1]["snr_db"],
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "bytes_down": sum(row["bytes_down"] for row in rows),
        "epsilon_bit": bit,
        "pure_epsilon_message_server": message,
        "epsilon_message_server": message,
        "pure_epsilon_run_server": run,
        "epsilon_run_server": run,
        "epsilon_run_model": 1.25 if private else "inf",
        "epsilon_spent": None,
        "honest": 50,
        "delta": 1e-5,
        "seconds": 1.5,
    }


def blocks(document, kind):
    """All blocks of one kind in a document."""
    return [b for s in document.sections for p in s.parts for b in p.blocks if isinstance(b, kind)]


def text_of(row):
    """The cells of a row as text."""
    return [str(part) for part in row]
