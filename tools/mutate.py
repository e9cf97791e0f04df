"""Mutation testing: change the code in one place at a time and check that a test fails.

    python tools/mutate.py [PATHS] --count 300     PATHS: files or folders, by default all

A mutant changes a comparison, operator, condition or number, or removes a statement. Compiled
functions, annotations, texts and arguments of errors are not changed. The tests of each mutant run
in a copy of the repository. A mutant that survives shows that a test is missing.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hushbit"
TESTS = {  # the quick tests of each file, or of the files in a folder
    "cpa.py": "test_cpa.py test_rho.py test_registry.py test_mechanism.py test_golden.py"
    " test_exact_law.py tally",
    "wrappers.py": "test_norm_vote.py test_subset.py test_tiers.py test_mixed_tiers.py encoding"
    " test_cpa.py tally/test_decoded_ballots.py",
    "mechanism.py": "test_mechanism.py test_registry.py test_cpa.py test_golden.py baselines",
    "privacy/ledger.py": "privacy/test_ledger.py privacy/test_ledger_files.py",
    "privacy/ledger_file.py": "privacy/test_ledger_marker.py privacy --ignore-glob=*/test_[!l]*",
    "privacy": "privacy --ignore-glob=*/test_ledger_* --ignore-glob=*/test_dp_*",
    "wire": "wire test_golden.py",
    "tally": "tally test_tiers.py test_cpa.py test_exact_law.py test_theorem1_bound.py",
    "encoding": "encoding test_exact_law.py test_golden.py kernels/test_encode.py",
}
SWAPS = """Lt:LtE LtE:Lt Gt:GtE GtE:Gt Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In
    Add:Sub Sub:Add Mult:Div Div:Mult And:Or Or:And Pow:Mult Mod:Mult FloorDiv:Mult LShift:RShift"""
SWAPPED = {getattr(ast, a): getattr(ast, b) for a, b in (p.split(":") for p in SWAPS.split())}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "exc", "cause"}


Mutant = namedtuple("Mutant", "path line change source")


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
    """All mutants of a file."""
    tree = ast.parse(path.read_text())

    def visit(node: ast.AST) -> Iterator[Mutant]:
        compiled = any("njit" in ast.unparse(d) for d in getattr(node, "decorator_list", []))
        if compiled or isinstance(node, ast.JoinedStr) or getattr(node, "arg", "") == "strict":
            return
        for field, value in ast.iter_fields(node):
            children: list[Any] = value if isinstance(value, list) else [value]
            for place, child in enumerate(children):
                if field in UNCHANGED_FIELDS or not isinstance(child, ast.AST):
                    continue
                for new in replacements(child, field):
                    children[place] = ast.copy_location(new, child)
                    setattr(node, field, children if isinstance(value, list) else new)
                    change = f"{ast.unparse(child)}  ->  {ast.unparse(new)}".replace("\n", " ")
                    yield Mutant(path, child.lineno, change[:150], ast.unparse(tree))
                    children[place] = child
                    setattr(node, field, value)
                yield from visit(child)

    yield from visit(tree)


def run_tests(tree: Path, tests: str, seconds: float | None = None) -> str:
    """Run tests in a copy of the tree; "survived" if they pass, else "killed" or "timeout"."""
    options: Any = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    options["env"] = os.environ | {"PYTHONPATH": f"{tree}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    command = f"-m pytest -x -q -p no:cacheprovider --hypothesis-seed=0 {tests}".split()
    options |= {"cwd": tree / "tests", "start_new_session": True}
    process = subprocess.Popen([sys.executable, *command], **options)
    try:
        return "killed" if process.wait(seconds) else "survived"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tests and all processes that they started
        process.wait()
        return "timeout"


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
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        trees: Queue[Path] = Queue()
        ignored = shutil.ignore_patterns(".*", "*.pyc", "results")
        for number in range(options.workers):  # the caches of compiled functions are copied too
            trees.put(shutil.copytree(ROOT, Path(folder, str(number)), ignore=ignored))
        seconds_limit: dict[str, float] = {}

        def run_mutant(mutant: Mutant) -> str:
            tree, name = trees.get(), mutant.path.relative_to(SOURCE)
            tests = TESTS.get(name.as_posix()) or TESTS[name.parts[0]]
            began = time.monotonic()
            if tests not in seconds_limit and run_tests(tree, tests) != "survived":
                trees.put(tree)
                raise SystemExit(f"these tests fail without a mutant: {tests}")
            seconds_limit.setdefault(tests, 30 + 3 * (time.monotonic() - began))
            (tree / "src/hushbit" / name).write_text(mutant.source)
            result = run_tests(tree, tests, seconds_limit[tests])
            shutil.copy2(mutant.path, tree / "src/hushbit" / name)
            trees.put(tree)
            print(f"{result:8} {name}:{mutant.line}  {mutant.change}", flush=True)
            return result

        print(dict(Counter(pool.map(run_mutant, chosen))))


if __name__ == "__main__":
    main()
