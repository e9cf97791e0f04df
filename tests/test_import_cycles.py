"""The package has no import cycles.

Imports inside functions and under TYPE_CHECKING count, because they hide cycles. A
name imported from a package is an edge to its `__init__.py`, unless it is a module of the package.
The implicit imports of parent packages are not edges.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

Graph = dict[str, set[str]]


def module_files(source: Path, package: str) -> dict[str, Path]:
    """The file of every module, by dotted name."""
    files = {}
    for path in sorted((source / package).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported_names(module: str, path: Path) -> Iterator[tuple[str, str | None]]:
    """Every (module, name) that a file imports; name is None for a whole module."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: package.count(".") + 2 - node.level]
                base = ".".join([*above, base] if base else above)
            yield from ((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            name = getattr(node.args[0], "value", None)
            if called == "import_module" and isinstance(name, str):
                yield name, None


def import_graph(source: Path, package: str) -> Graph:
    """Which files of a package each file imports."""
    files = module_files(source, package)
    label = {module: path.relative_to(source).as_posix() for module, path in files.items()}
    graph: Graph = {name: set() for name in label.values()}
    for module, path in files.items():
        for base, name in imported_names(module, path):
            target = f"{base}.{name}" if f"{base}.{name}" in files else base
            if target in files:
                graph[label[module]].add(label[target])
    return graph


def import_cycles(graph: Graph) -> list[list[str]]:
    """The groups of files that reach each other, and single files that import themselves."""
    reached: Graph = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            file = waiting.pop()
            if file not in seen:
                seen.add(file)
                waiting.extend(graph[file])
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in reached[file] if file in reached[other]))
        for file in graph
        if file in reached[file]
    }
    return [list(group) for group in sorted(groups)]


def test_no_import_cycles() -> None:
    graph = import_graph(SOURCE, "hushbit")
    assert "hushbit/cpa.py" in graph["hushbit/__init__.py"]
    cycles = import_cycles(graph)
    lines = [f"{len(cycle)} files: {', '.join(cycle)}" for cycle in cycles]
    assert not cycles, "files that import each other:\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("files", "cycles"),
    [
        ({"a.py": "import p.b", "b.py": "import numpy"}, []),
        ({"a.py": "import p.b", "b.py": "import p.a"}, [["p/a.py", "p/b.py"]]),
        ({"a.py": "from p import b", "b.py": "from .a import f"}, [["p/a.py", "p/b.py"]]),
        (
            {"a.py": "from .b import f", "b.py": "def f():\n    from p.a import g"},
            [["p/a.py", "p/b.py"]],
        ),
        (
            {
                "a.py": "from p.b import f",
                "b.py": "import typing\nif typing.TYPE_CHECKING:\n    from p.a import g",
            },
            [["p/a.py", "p/b.py"]],
        ),
        (
            {"a.py": "import p.b", "b.py": "import importlib\nimportlib.import_module('p.a')"},
            [["p/a.py", "p/b.py"]],
        ),
        (
            {"__init__.py": "from p.a import f", "a.py": "import p.b", "b.py": "from p import f"},
            [["p/__init__.py", "p/a.py", "p/b.py"]],
        ),
        ({"__init__.py": "from p.a import f", "a.py": "import p.b", "b.py": ""}, []),
        (
            {
                "q/__init__.py": "from p.q.a import f",
                "q/a.py": "from ..b import g",
                "b.py": "from p.q import f",
            },
            [["p/b.py", "p/q/__init__.py", "p/q/a.py"]],
        ),
        ({"a.py": "import p.a"}, [["p/a.py"]]),
    ],
)
def test_cycles_are_found(files: dict[str, str], cycles: list[list[str]], tmp_path: Path) -> None:
    for name, text in {"__init__.py": "", **files}.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert import_cycles(import_graph(tmp_path, "p")) == cycles
