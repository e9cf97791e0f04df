"""The paper's items and claims, and the function that judges them."""

import ast
import hashlib
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hushbit.lab.experiments import paper
from hushbit.lab.experiments.claims import (
    STATES,
    CellRef,
    Claim,
    claims,
    paper_items,
    ref_of,
    verdict,
)
from hushbit.lab.experiments.reproduce import EXPERIMENTS
from hushbit.lab.experiments.results import RULE, Axes, Cell, Metric, Result

ROOT = Path(__file__).parents[3]
TEX = next(
    (one for up in ROOT.parents if (one := up / "shared" / "paper" / "cpa.tex").is_file()), None
)
COUNTS = {
    "Table II": 43,
    "Table III": 42,
    "Table IV": 48,
    "Table V": 78,
    "Table VI": 65,
    "Fig. 6": 69,
    "Fig. 7": 14,
    "Fig. 8": 4,
    "Fig. 9": 2,
    "Fig. 10": 3,
    "Claim 1": 1,
    "Proposition 1": 1,
    "Proposition 2": 1,
    "Corollary 1": 1,
    "Theorem 1": 3,
    "Lemma 1": 1,
    "Theorem 2": 72,
    "Lemma 2": 36,
    "Lemma 3": 36,
}
DIGEST = "4dc8634a150a03ab"


def _plain(tex):
    """A caption of the paper as plain text."""
    for macro, text in {
        r"\ncpa": "nested CPA",
        r"\vcpa": "1-bit CPA",
        r"\varepsilon": "ε",
        r"\Delta": "Δ",
        r"\user": "r",
        r"\in": "∈",
        r"\{": "{",
        r"\}": "}",
        r"\ ": " ",
        "$": "",
    }.items():
        tex = tex.replace(macro, text)
    tex = re.sub(r"\\ac\{(\w+)\}", lambda found: found[1].upper(), tex)
    return re.sub(r"(?<=,) +", " ", " ".join(tex.split()))


def _captions(tex, environment):
    found = []
    for part in re.findall(rf"\\begin{{{environment}\*?}}.*?\\end{{{environment}\*?}}", tex, re.S):
        start = part.index("\\caption{") + len("\\caption{")
        depth, end = 1, start
        while depth:
            depth += {"{": 1, "}": -1}.get(part[end], 0) if part[end - 1] != "\\" else 0
            end += 1
        found.append(_plain(part[start : end - 1]))
    return found


@pytest.mark.skipif(TEX is None, reason="the paper's source is not part of the repository")
def test_the_items_are_those_of_the_paper():
    tex = TEX.read_text(encoding="utf-8").partition(r"\end{document}")[0]
    own = {one.number: one.title for one in paper_items()}
    romans = ("I", "II", "III", "IV", "V", "VI")
    tables = {f"Table {n}": text for n, text in zip(romans, _captions(tex, "table"), strict=True)}
    figures = {f"Fig. {n}": text for n, text in enumerate(_captions(tex, "figure"), 1)}
    assert len(figures) == 10
    assert {n: t for n, t in own.items() if n.startswith(("Table", "Fig."))} == tables | figures
    for name in ("Claim", "Proposition", "Corollary", "Theorem", "Lemma"):
        stated = len(re.findall(rf"\\begin{{{name.lower()}}}", tex))
        assert sum(number.startswith(name) for number in own) == stated


def test_every_item_has_claims_or_says_why_not():
    with_claims = {claim.item for claim in claims()}
    assert with_claims <= {one.number for one in paper_items()}
    for one in paper_items():
        assert (one.number in with_claims) != bool(one.about), one.number
        assert set(one.experiments) <= set(EXPERIMENTS)
        own = {claim.experiment for claim in claims() if claim.item == one.number}
        assert own - {""} == set(one.experiments)


def test_every_published_cell_has_a_claim():
    """The number of published figures, counted here by hand from the paper's tables."""
    texts = [claim.text for claim in claims() if "of the published" in claim.text]
    per_reading = (5 + 5 + 5) + (5 + 5 + 5)  # Tables II and III: FedAvg, CPA and MSE
    assert len(texts) == 2 * per_reading + 24 + 30 + 24 + 30


def test_claims_are_fixed():
    """Claims precede the runs that decide them: any change of a claim changes this digest."""
    counted = {}
    for claim in claims():
        counted[claim.item] = counted.get(claim.item, 0) + 1
    assert counted == COUNTS
    text = json.dumps([asdict(claim) for claim in claims()], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST


def test_evidence_exists():
    decided = [claim for claim in claims() if claim.state]
    assert len(decided) >= 8
    for claim in decided:
        assert claim.state in STATES
        assert claim.reason
        file, _, name = claim.evidence.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_published_mse_falls_as_a_root():
    """From 50 to 400 users a mean square error falls by 8, its root by 2.83."""
    fall = paper.ERROR_BY_USERS[0] / paper.ERROR_BY_USERS[2]
    assert fall == pytest.approx(math.sqrt(8), rel=0.1)


def test_published_decibels_are_doubled():
    """The variance of Laplace noise falls as 1 / epsilon²: by 13.98 dB from 0.5 to 2.5."""
    for users in (100, 1000):
        row = paper.SNR_BY_EPSILON["Laplace", users]
        assert row[-1] - row[0] == pytest.approx(2 * 20 * math.log10(5), rel=0.01)


REF = CellRef("CPA", "authors", "accuracy", (("users", 10),))
OTHER = CellRef("CPA", "corrected", "accuracy", (("users", 10),))
NEAR = Claim("Table V", "near", "nested", (((1.0, REF),),), 82.0, 88.0)
BETTER = Claim("Table V", "better", "nested", (((1.0, OTHER), (-1.0, REF)),))


def _result(*means, seeds=10, **options):
    cells = tuple(
        Cell(
            ref.scheme, ref.variant, dict(ref.where), ref.metric, mean, mean, mean, (mean,) * seeds
        )
        for ref, mean in zip((REF, OTHER), means, strict=False)
    )
    axes = Axes("table", None, "", False, (Metric("accuracy", "accuracy"),))
    blank = {"about": "", "choices": (), "privacy": (), "checks": (), "notes": ()}
    made = Result(
        "nested",
        "t",
        "Table V",
        False,
        "c",
        (201,),
        axes=axes,
        cells=cells,
        environment={},
        seconds=1.0,
        rule=RULE,
        **blank,
    )
    return {"nested": replace(made, **options)}


@pytest.mark.parametrize(
    ("means", "near", "better"),
    [
        ((85.0, 85.0), "reproduced", "reproduced"),
        ((82.0, 81.9), "reproduced", "not reproduced"),
        ((88.1, 88.2), "not reproduced", "reproduced"),
        ((81.9, 80.0), "not reproduced", "not reproduced"),
        ((85.0,), "reproduced", "not run"),
    ],
)
def test_a_verdict_follows_the_means(means, near, better):
    results = _result(*means)
    assert (verdict(NEAR, results).state, verdict(BETTER, results).state) == (near, better)


def test_figures_are_those_of_the_cell():
    assert verdict(NEAR, _result(85.25)).figure == "85.25"
    assert verdict(BETTER, _result(85.0, 84.0)).figure == "difference -1"


@pytest.mark.parametrize(
    "options", [{"rule": ""}, {"rule": "another"}, {"quick": True}, {"seeds": 9}]
)
def test_results_without_the_rule_confirm_nothing(options):
    found = verdict(NEAR, _result(85.0, **options))
    assert (found.state, found.figure, found.earlier) == ("not run", "", "85")


def test_a_claim_without_result_or_forms_is_not_run():
    assert verdict(NEAR, {}).state == "not run"
    assert verdict(replace(NEAR, forms=()), _result(85.0)).state == "not run"


def test_a_theorem_that_fails_is_refuted_and_a_decided_claim_needs_no_result():
    assert verdict(replace(NEAR, failed="refuted"), _result(10.0)).state == "refuted"
    decided = Claim("Fig. 7", "text", state="refuted", reason="why")
    assert verdict(decided, {}).figure == "why"


def test_every_form_must_hold():
    both = replace(NEAR, forms=(((1.0, REF),), ((1.0, OTHER),)))
    assert verdict(both, _result(85.0, 84.0)).state == "reproduced"
    found = verdict(both, _result(85.0, 89.0))
    assert (found.state, found.figure) == ("not reproduced", "difference 89; 1 of 2 fail")


def test_cells_of_earlier_results_have_the_first_reading():
    cell = Cell("CPA", "authors", {}, "accuracy", 1.0, 1.0, 1.0, (), 50.0)
    assert ref_of(cell, by_rule=False).where == (("reading", paper.READINGS[0]),)
    assert ref_of(cell).where == ()
