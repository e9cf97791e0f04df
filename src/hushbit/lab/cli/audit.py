"""The `audit` command: attack the encoder, read a ledger, or reconstruct images."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from hushbit.checks import check_positive
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import AuditFinding
from hushbit.lab.attacks.audit import audit as attack
from hushbit.lab.cli.output import err, out, show_json, table
from hushbit.privacy.ledger import Ledger, UserSummary

CLAIM_EXCEEDED = 1
FAST_BALLOTS, FAST_CLAIM = 1_000_000, 3.5
SLOW_BALLOTS, SLOW_CLAIM = 150_000, 2.0


def audit(
    epsilon_per_bit: Annotated[
        float | None, typer.Option(help="Attack a CPA encoder with this epsilon per bit.")
    ] = None,
    points: Annotated[int, typer.Option(help="Number of points of the attacked encoder.")] = 2,
    dim: Annotated[
        int | None,
        typer.Option(help="Entries of an update; default: the most that the audit can measure."),
    ] = None,
    ballots: Annotated[
        int | None,
        typer.Option(
            help="Ballots per update, for two updates; default: 1 000 000 for two points, "
            "else 150 000."
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Print what every user in this ledger has spent.")
    ] = None,
    inversion: Annotated[
        Path | None,
        typer.Option(
            help="PNG file to draw digits into that are reconstructed from updates; default "
            "epsilon per bit: 0.5."
        ),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="Data set to reconstruct images of: digits or mnist.")
    ] = "digits",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Attack the encoder, read a ledger, or reconstruct images from updates.

    The exit code is 1 if an attack proves that epsilon is larger than claimed.
    """
    modes = [
        epsilon_per_bit is not None and inversion is None,
        ledger is not None,
        inversion is not None,
    ]
    if sum(modes) != 1:
        raise InvalidInput("give one of --epsilon-per-bit, --ledger FILE or --inversion OUT.png")
    if ledger is not None:
        _show_ledger(ledger, json)
    elif inversion is not None:
        _show_inversion(inversion, dataset, epsilon_per_bit, json)
    else:
        _attack(check_positive("epsilon_per_bit", epsilon_per_bit), points, dim, ballots, json)


def _attack(epsilon: float, points: int, dim: int | None, ballots: int | None, json: bool) -> None:
    fast = points == 2
    claim = FAST_CLAIM if fast else SLOW_CLAIM
    size = max(1, round(claim / epsilon)) if dim is None else dim
    trials = (FAST_BALLOTS if fast else SLOW_BALLOTS) if ballots is None else ballots
    mechanism = CPA(size, epsilon, 1.0, points=points)
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(f"encoding 2 x {trials:,} ballots", total=1.0)
        findings = attack(
            mechanism, trials, progress=lambda share: progress.update(task, completed=share)
        )
    if json:
        show_json(
            {
                "mechanism": mechanism.description,
                "ballots": trials,
                "findings": [finding.row() for finding in findings],
                "passed": all(finding.passed for finding in findings),
            }
        )
    else:
        _show_findings(findings, mechanism, trials)
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
    out.print(table(title, ["attack", "claimed epsilon", "at least", "share", "verdict"], rows))


def _show_ledger(path: Path, json: bool) -> None:
    summary = Ledger.open(path, create=False).summary()
    if json:
        show_json([_ledger_row(user) for user in summary])
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
    out.print(table(f"{len(summary)} users in {path.name}", columns, rows))


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


def _show_inversion(path: Path, dataset: str, epsilon: float | None, json: bool) -> None:
    from hushbit.lab.attacks.inversion import draw, invert

    with err.status("reconstructing digits from updates"):
        found = invert(dataset, epsilon_per_bit=0.5 if epsilon is None else epsilon)
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
