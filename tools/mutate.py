"""Mutation testing: change the code in one place at a time and check that a test fails.

    python tools/mutate.py [PATHS] --count 300     PATHS: files or folders, by default all

A mutant changes a comparison, operator, condition or number, or removes a statement. Compiled
functions, annotations, texts and arguments of errors are not changed. The tests of each mutant run
in a copy of the repository: first those that reach the changed line, the quickest first, then, if
they pass, all tests of the changed file. A mutant that survives shows that a test is missing.
"""

import argparse
import ast
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter, namedtuple
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import hypothesis  # noqa: F401  imported once here, not again by the processes of all mutants
import numba  # noqa: F401
import pytest
import scipy.stats  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hushbit"
TESTS = {  # the quick tests of each file, or of the files in a folder
    "cpa.py": "test_cpa.py test_rho.py test_registry.py test_mechanism.py test_golden.py"
    " test_exact_law.py tally/*",
    "wrappers.py": "test_norm_vote.py test_subset.py test_*tiers.py encoding/* test_cpa.py"
    " tally/test_decoded_ballots.py test_mechanism.py test_golden.py",
    "mechanism.py": "test_mechanism.py test_registry.py test_cpa.py test_golden.py baselines/*",
    "privacy/ledger.py": "privacy/test_ledger.py privacy/test_ledger_files.py",
    "privacy/ledger_file.py": "privacy/test_ledger*",
    "privacy/central.py": "privacy/test_central.py privacy/test_gaussian_sum.py"
    " privacy/test_tally_slope.py",
    "privacy/guarantee.py": "privacy/test_guarantee.py privacy/test_anonymity.py"
    " privacy/test_central.py",
    "privacy": "privacy/test_[!cdlp]* privacy/test_comp* privacy/test_ledger.py",
    "wire": "wire/* test_golden.py",
    "tally": "tally/* test_tiers.py test_cpa.py test_exact_law.py test_theorem1_bound.py"
    " wire/test_ballot_mac.py",
    "encoding": "encoding/* test_cpa.py test_exact_law.py test_golden.py kernels/test_encode.py",
}
SWAPS = """Lt:LtE LtE:Lt Gt:GtE GtE:Gt Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In
    Add:Sub Sub:Add Mult:Div Div:Mult And:Or Or:And Pow:Mult Mod:Mult FloorDiv:Mult LShift:RShift"""
SWAPPED = {getattr(ast, a): getattr(ast, b) for a, b in (p.split(":") for p in SWAPS.split())}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "exc", "cause"}


Mutant = namedtuple("Mutant", "path lines title source")


def replacements(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """The nodes that may replace a node."""
    made: Any = copy(node)
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            made = copy(node)
            made.ops = [*node.ops[:place], SWAPPED[type(op)](), *node.ops[place + 1 :]]
            yield made
    elif type(getattr(node, "op", None)) in SWAPPED:
        made.op = SWAPPED[type(made.op)]()
        yield made
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        others = {bool: lambda x: not x, int: lambda x: x + 1, float: lambda x: 2 * x or 1.0}
        yield ast.Constant(others[type(node.value)](node.value))
    elif field == "test":
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
    if isinstance(node, REMOVABLE) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield ast.Pass()


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file. `lines` is empty outside of functions, which run on import."""
    tree = ast.parse(path.read_text())

    def visit(node: ast.AST, start: int, inside: bool) -> Iterator[Mutant]:
        compiled = any("njit" in ast.unparse(d) for d in getattr(node, "decorator_list", []))
        if compiled or isinstance(node, ast.JoinedStr) or getattr(node, "arg", "") == "strict":
            return
        for field, value in ast.iter_fields(node):
            children: list[Any] = value if isinstance(value, list) else [value]
            in_function = inside or (field == "body" and isinstance(node, ast.FunctionDef))
            for place, child in enumerate(children):
                if field in UNCHANGED_FIELDS or not isinstance(child, ast.AST):
                    continue
                first = child.lineno if isinstance(child, ast.stmt) else start
                for new in replacements(child, field):
                    children[place] = ast.copy_location(new, child)
                    setattr(node, field, children if isinstance(value, list) else new)
                    change = f"{ast.unparse(child)}  ->  {ast.unparse(new)}".replace("\n", " ")
                    title = f"{path.relative_to(SOURCE)}:{child.lineno}  {change[:150]}"
                    lines = range(first, child.end_lineno + 1) if in_function else ()
                    yield Mutant(path, lines, title, ast.unparse(tree))
                    children[place] = child
                    setattr(node, field, value)
                yield from visit(child, first, in_function)

    yield from visit(tree, 1, False)


class Durations:
    """A plugin of pytest that writes the seconds of each test to a file."""

    def __init__(self, file: Path) -> None:
        self.file, self.seconds = file, Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add the duration of a test, its setup or its teardown."""
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the durations."""
        self.file.write_text(json.dumps(self.seconds))


def run_tests(tree: Path, tests: Iterable[str], seconds: float | None, *plugins: Any) -> int:
    """Run tests in a copy of the tree; returns pytest's exit status, or -9 after the time limit."""

    def child() -> None:
        os.setsid()
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os.environ |= {"PYTHONPATH": f"{tree}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, f"{tree}/src")
        sys.dont_write_bytecode = True
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        os._exit(pytest.main([*options, *tests], plugins))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)  # the tests and all processes that they started
        process.join()
    return int(process.exitcode)


def test_files(path: Path) -> list[str]:
    """The files with the tests of a source file."""
    name = path.relative_to(SOURCE)
    patterns = (TESTS.get(name.as_posix()) or TESTS[name.parts[0]]).split()
    found = {file for pattern in patterns for file in (ROOT / "tests").glob(pattern)}
    return sorted(str(f.relative_to(ROOT)) for f in found if f.name.startswith("test_"))


class Trace:
    """The seconds of each test, and which tests reach which lines."""

    def __init__(self, tree: Path, files: list[str]) -> None:
        os.environ["COVERAGE_FILE"] = str(tree / "trace")
        options = ["--cov=hushbit", "--cov-context=test", "--cov-report=", "--cov-config=/dev/null"]
        if run_tests(tree, [*options, *files], None, Durations(tree / "durations")):
            raise SystemExit("a test fails without a mutant")
        self.tree, self.seconds = tree, json.loads((tree / "durations").read_text())
        self.coverage = coverage.CoverageData(str(tree / "trace"))
        self.coverage.read()

    def runs(self, mutant: Mutant) -> list[tuple[list[str], float]]:
        """The tests to run one after the other, and their time limits.

        These are the tests that reach the changed lines, the quickest first, then all tests.
        """
        files = test_files(mutant.path)
        tests = {test for test in self.seconds if test.split("::")[0] in files}
        by_line = self.coverage.contexts_by_lineno(str(self.tree / mutant.path.relative_to(ROOT)))
        contexts = (c for line in mutant.lines or by_line for c in by_line.get(line, ()))
        reaching = sorted({c.rpartition("|")[0] for c in contexts} & tests, key=self.seconds.get)
        chosen = [(reaching, reaching), (files, tests)] if reaching else [(files, tests)]
        return [(named, 20 + 5 * sum(map(self.seconds.get, run))) for named, run in chosen]


def run_mutant(folder: str, job: tuple[Mutant, list[tuple[list[str], float]]]) -> str:
    """The result of one mutant: killed, timeout or survived."""
    mutant, runs = job
    tree = Path(folder, str(os.getpid()))
    if not tree.exists():
        copy_repository(tree)
    changed = tree / mutant.path.relative_to(ROOT)
    changed.write_text(mutant.source)
    for tests, seconds in runs:
        status = run_tests(tree, tests, seconds)
        if status not in (0, 4, 5):  # 4, 5: the mutant changed the names of tests
            break
    shutil.copy2(mutant.path, changed)
    return {0: "survived", -signal.SIGKILL: "timeout"}.get(status, "killed")


def copy_repository(tree: Path) -> None:
    """Copy the repository with the caches of compiled functions."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "*.pyc", "results"))


def main() -> None:
    """Print the result of each mutant, then the number of mutants by result."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("paths", nargs="*", type=lambda p: Path(p).resolve(), default=[SOURCE])
    for name, default in (("--count", 300), ("--seed", 0), ("--workers", 2)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    listed = {f for name in TESTS for f in (SOURCE / name, *(SOURCE / name).glob("*.py"))}
    files = [f for f in sorted(listed) if f.is_file() and any(map(f.is_relative_to, options.paths))]
    found = [mutant for file in files for mutant in mutants(file)]
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(chosen)} of {len(found)} mutants of {len(files)} files", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy_repository(tree := Path(folder, "traced"))
        trace = Trace(tree, sorted({f for m in chosen for f in test_files(m.path)}))
        jobs = [(mutant, trace.runs(mutant)) for mutant in chosen]
        counts: Counter[str] = Counter()
        with ProcessPoolExecutor(options.workers, multiprocessing.get_context("fork")) as pool:
            results = pool.map(partial(run_mutant, folder), jobs)
            for mutant, result in zip(chosen, results, strict=True):
                counts[result] += 1
                print(f"{result:8} {mutant.title}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
