"""The `audit` command: attack encoder, tallies or models, read a ledger, reconstruct images."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from hushbit.checks import check_positive
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import AuditFinding
from hushbit.lab.attacks.audit import Progress as Report
from hushbit.lab.attacks.audit import audit as attack
from hushbit.lab.attacks.tally_audit import audit_tally, measurable_clip, tally_sentence
from hushbit.lab.cli.output import err, need_lab, out, show_json, table
from hushbit.privacy.ledger import LEDGER_UNIT, Ledger, UserSummary
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import UserKeys

CLAIM_EXCEEDED = 1
FAST_BALLOTS, FAST_CLAIM = 1_000_000, 3.5
SLOW_BALLOTS, SLOW_CLAIM = 150_000, 2.0
TALLY_USERS, TALLIES, TALLY_CONFIDENCE = 20, 400_000, 0.99
CLIP_TALLIES, CLIP_ENTRIES = 10, 32
"""The test of the clip: 1/CLIP_TALLIES of the tallies, CLIP_ENTRIES times as many entries."""

MEMBERSHIP_USERS, MEMBERSHIP_ROUNDS, MEMBERSHIP_RUNS = 50, 5, 300
DEFAULT_EPSILON, DEFAULT_DELTA = 0.5, 1e-5
DEFAULT_POINTS, DEFAULT_DATASET = 2, "digits"


def audit(
    epsilon_per_bit: Annotated[
        float | None,
        typer.Option(
            help="Attack a CPA encoder with this epsilon per bit; default of --tally, "
            "--membership and --inversion: 0.5."
        ),
    ] = None,
    tally: Annotated[
        bool,
        typer.Option(
            "--tally", help="Attack tallies, which are sums over users, instead of single ballots."
        ),
    ] = False,
    membership: Annotated[
        bool,
        typer.Option("--membership", help="Attack models: infer whether a user's data were used."),
    ] = False,
    users: Annotated[
        int | None,
        typer.Option(help="Honest users in each tally; default: 20, for --membership 50."),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="l2 clip in radii (--tally); default: the largest one with epsilon up to 4."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of a run; default: 1, for --membership 5.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Delta of the audited claim (--tally, --membership).")
    ] = DEFAULT_DELTA,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Ballots, tallies (--tally) or training runs (--membership) for each of two "
            "inputs; default: 1 000 000 ballots for two points, else 150 000; 400 000 tallies; "
            "300 runs."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of reproducible coins (--tally, --membership); default: coins of the "
            "operating system, for --membership 0."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Number of points of the attacked encoder.")] = (
        DEFAULT_POINTS
    ),
    dim: Annotated[
        int | None,
        typer.Option(help="Entries of an update; default: the most that the audit can measure."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Print what every user in this ledger has spent.")
    ] = None,
    inversion: Annotated[
        Path | None,
        typer.Option(help="PNG file to draw digits into that are reconstructed from updates."),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="Data set (--membership, --inversion): digits or mnist.")
    ] = DEFAULT_DATASET,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Attack encoder, tallies or models, read a ledger, or reconstruct images from updates.

    The exit code is 1 if an attack proves that epsilon is larger than claimed.
    """
    modes = [tally, membership, ledger is not None, inversion is not None]
    if sum(modes) > 1 or (not any(modes) and epsilon_per_bit is None):
        raise InvalidInput(
            "give one of --tally, --membership, --ledger FILE or --inversion OUT.png, or "
            "--epsilon-per-bit alone"
        )
    epsilon = check_positive(
        "epsilon_per_bit", DEFAULT_EPSILON if epsilon_per_bit is None else epsilon_per_bit
    )
    mode = ("--tally", "--membership", "--ledger", "--inversion", "the attack on single ballots")
    _refuse_unused(
        mode[modes.index(True) if any(modes) else -1],
        epsilon_per_bit=epsilon_per_bit is not None,
        users=users is not None,
        clip=clip is not None,
        rounds=rounds is not None,
        delta=delta != DEFAULT_DELTA,
        trials=trials is not None,
        seed=seed is not None,
        points=points != DEFAULT_POINTS,
        dim=dim is not None,
        dataset=dataset != DEFAULT_DATASET,
    )
    if ledger is not None:
        _show_ledger(ledger, json)
    elif inversion is not None:
        _show_inversion(inversion, dataset, epsilon, json)
    elif tally:
        _attack_tally(epsilon, users, clip, rounds, delta, trials, seed, json)
    elif membership:
        _attack_models(dataset, epsilon, users, rounds, delta, trials, seed, json)
    else:
        _attack(epsilon, points, dim, trials, json)


USED = {
    "--tally": "epsilon_per_bit users clip rounds delta trials seed",
    "--membership": "epsilon_per_bit users rounds delta trials seed dataset",
    "--ledger": "",
    "--inversion": "epsilon_per_bit dataset",
    "the attack on single ballots": "epsilon_per_bit points dim trials",
}
"""The options that each kind of audit uses."""


def _refuse_unused(mode: str, **given: bool) -> None:
    """Refuse an option that was given and that this kind of audit would ignore."""
    for name, was_given in given.items():
        if was_given and name not in USED[mode].split():
            flag = "--" + name.replace("_", "-")
            raise InvalidInput(f"{flag} has no effect on {mode}: leave it out")


@contextmanager
def _progress(text: str) -> Iterator[Report]:
    """A progress bar that disappears at the end; yields a function that sets the finished share."""
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(text, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def _attack(epsilon: float, points: int, dim: int | None, trials: int | None, json: bool) -> None:
    fast = points == 2
    claim = FAST_CLAIM if fast else SLOW_CLAIM
    size = max(1, round(claim / epsilon)) if dim is None else dim
    count = (FAST_BALLOTS if fast else SLOW_BALLOTS) if trials is None else trials
    mechanism = CPA(size, epsilon, 1.0, points=points)
    with _progress(f"encoding 2 x {count:,} ballots") as report:
        findings = attack(mechanism, count, progress=report)
    if json:
        show_json(
            {
                "mechanism": mechanism.description,
                "ballots": count,
                "findings": [finding.row() for finding in findings],
                "passed": all(finding.passed for finding in findings),
            }
        )
    else:
        _show_findings(findings, mechanism, count)
    _exit_if_exceeded(findings)


def _exit_if_exceeded(findings: list[AuditFinding]) -> None:
    exceeded = [finding for finding in findings if not finding.passed]
    for finding in exceeded:
        print(
            f"hushbit: {finding.attack}: epsilon is at least {finding.lower_bound:.4g}, "
            f"above the claimed {finding.claim:.4g}",
            file=sys.stderr,
        )
    if exceeded:
        raise typer.Exit(CLAIM_EXCEEDED)


def _show_findings(findings: list[AuditFinding], mechanism: CPA, trials: int) -> None:
    title = (
        f"{trials:,} ballots of each of the two worst-case updates; {mechanism.blocks} bits per "
        f"message, confidence {findings[0].confidence:g}"
    )
    out.print(_findings_table(title, findings))


def _findings_table(title: str, findings: list[AuditFinding]) -> Table:
    rows = [
        [
            f.attack,
            f"{f.claim:.4g}",
            f"{f.lower_bound:.4f}",
            f"{f.lower_bound / f.claim:.1%}",
            "within the claim" if f.passed else "CLAIM EXCEEDED",
        ]
        for f in findings
    ]
    return table(title, ["attack", "claimed epsilon", "at least", "share", "verdict"], rows)


def _attack_tally(
    epsilon: float,
    users: int | None,
    clip: float | None,
    rounds: int | None,
    delta: float,
    trials: int | None,
    seed: int | None,
    json: bool,
) -> None:
    users = TALLY_USERS if users is None else users
    tallies = TALLIES if trials is None else trials
    rounds = 1 if rounds is None else rounds
    length = measurable_clip(epsilon, users, rounds, delta) if clip is None else clip
    entries = max(1, math.ceil(check_positive("clip", length) ** 2 - 1e-9))
    few = CPA(entries, epsilon, 1.0, clip=length)
    many = CPA(CLIP_ENTRIES * entries, epsilon, 1.0, clip=length)
    coins = None if seed is None else SeededCoins(seed)
    confidence = 1 - (1 - TALLY_CONFIDENCE) / 2
    findings = []
    for mechanism, count in ((few, tallies), (many, tallies // CLIP_TALLIES)):
        with _progress(f"counting 2 x {count:,} tallies of {users} users") as report:
            findings.append(
                audit_tally(
                    mechanism,
                    users,
                    count,
                    delta=delta,
                    rounds=rounds,
                    entries=mechanism.dim,
                    confidence=confidence,
                    encoder=partial(_encode, mechanism, coins),
                    progress=report,
                )
            )
    worst = max(findings, key=lambda finding: finding.lower_bound / finding.claim)
    sentence = tally_sentence(replace(worst, confidence=TALLY_CONFIDENCE))
    if json:
        show_json(
            {
                "answer": sentence,
                "mechanism": few.description,
                "honest": users,
                "rounds": rounds,
                "relation": "replace",
                "delta": delta,
                "tallies": tallies,
                "findings": [finding.row() for finding in findings],
                "passed": all(finding.passed for finding in findings),
            }
        )
    else:
        out.print(sentence, highlight=False)
        title = (
            f"tallies of {users} honest users, clip {length:.4g} radii, "
            f"{epsilon:g} per bit; replace one user's update; {tallies:,} tallies for each of two "
            "inputs"
        )
        out.print(_findings_table(title, findings))
    _exit_if_exceeded(findings)


def _encode(mechanism: CPA, coins: Any, updates: Any, keys: UserKeys) -> Ballots:
    return mechanism.encode_many(updates, keys, coins)


def _attack_models(
    dataset: str,
    epsilon: float,
    users: int | None,
    rounds: int | None,
    delta: float,
    trials: int | None,
    seed: int | None,
    json: bool,
) -> None:
    need_lab()
    from hushbit.lab.attacks.membership import LOW_RATE, attacked_run, membership

    users = MEMBERSHIP_USERS if users is None else users
    runs = MEMBERSHIP_RUNS if trials is None else trials
    rounds = MEMBERSHIP_ROUNDS if rounds is None else rounds
    settings = attacked_run(dataset, epsilon, users, rounds, delta, seed or 0)
    with _progress(f"training 2 x {runs:,} models") as report:
        found = membership(settings, runs, progress=report)
    sentence = found.sentence()
    if json:
        named = {"dataset": dataset, "epsilon_per_bit": epsilon, "honest": users, "rounds": rounds}
        show_json({"answer": sentence, **named, "relation": "replace", **found.row()})
    else:
        out.print(sentence, highlight=False)
        rows = [
            ["AUC", f"{found.auc:.3f}", _interval(found.auc_interval), f"{found.limit_auc:.3f}"],
            [
                f"hit rate at {LOW_RATE:.0%} false alarms",
                f"{found.hit_rate:.3f}",
                _interval(found.hit_interval),
                f"{found.limit_rate:.3f}",
            ],
        ]
        title = (
            f"{runs:,} runs with and {runs:,} without the data of one of {users} users; {dataset}, "
            f"linear model, {rounds} rounds, {epsilon:g} per bit"
        )
        columns = ["figure", "measured", f"{found.confidence:.0%} interval", "claim allows"]
        out.print(table(title, columns, rows))
    if not found.passed:
        print("hushbit: the membership attack exceeds the claim", file=sys.stderr)
        raise typer.Exit(CLAIM_EXCEEDED)


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.3f} to {ends[1]:.3f}"


def _show_ledger(path: Path, json: bool) -> None:
    summary = Ledger.open(path, create=False).summary()
    if json:
        show_json([_ledger_row(user) | {"against": "server"} for user in summary])
        return
    columns = [
        "user",
        "ballots",
        "bits",
        "last round",
        "pure epsilon",
        "spent",
        "unit",
        "limit",
        "remaining",
        "proved by",
    ]
    rows = [
        [
            str(value) if not isinstance(value, float) else f"{value:.6g}"
            for value in _ledger_row(user).values()
        ]
        for user in summary
    ]
    title = f"{len(summary)} users in {path.name}; epsilon {LEDGER_UNIT}"
    out.print(table(title, columns, rows))


def _ledger_row(user: UserSummary) -> dict[str, Any]:
    limit = user.limit
    return {
        "user": user.user,
        "ballots": user.ballots,
        "bits": user.bits,
        "last_round": user.last_round,
        "pure_epsilon": user.pure_epsilon,
        "spent": user.spent.epsilon,
        "unit": "pure epsilon" if limit is None else limit.unit,
        "limit": None if limit is None else limit.epsilon,
        "remaining": user.remaining,
        "proved_by": user.spent.method,
    }


def _show_inversion(path: Path, dataset: str, epsilon: float, json: bool) -> None:
    from hushbit.lab.attacks.inversion import draw, invert

    with err.status("reconstructing digits from updates"):
        found = invert(dataset, epsilon_per_bit=epsilon)
        draw(found, path)
    if json:
        show_json(found.rows())
        return
    rows = [
        [row["seen"], f"{row['psnr_db']:.1f}", f"{row['psnr_alone_db']:.1f}"]
        for row in found.rows()
    ]
    title = f"PSNR in dB of the images that the server reconstructs; images in {path}"
    out.print(table(title, ["server's view", "with public prior", "without prior"], rows))
