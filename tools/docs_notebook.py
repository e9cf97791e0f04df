"""Notebooks of the documentation: run them, store what they print, and convert them to Markdown.

    python tools/docs_notebook.py docs/tutorial.ipynb    run the cells and store their outputs

Cells are plain Python in one namespace, so no notebook software is needed; a test runs them too.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """The notebook in a file."""
    found: Notebook = json.loads(path.read_text("utf-8"))
    return found


def execute(notebook: Notebook) -> dict[str, Any]:
    """Run all code cells and set their outputs; returns the namespace of the cells."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"], cell["outputs"] = count, _outputs(cell, names, count)
    return names


def _outputs(cell: dict[str, Any], names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; the value of a last line that is an expression is shown as in a notebook."""
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        page = getattr(value, "_repr_html_", None)
        data = {"text/plain": [repr(value)[:200]]}
        if page is not None:
            data = {"text/html": page().splitlines(keepends=True), "text/plain": [str(value)[:200]]}
        shown = {"data": data, "metadata": {}, "execution_count": count}
        found.append({"output_type": "execute_result", **shown})
    return found


def to_markdown(notebook: Notebook) -> str:
    """The cells with their stored outputs as Markdown; HTML stays as it is."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text")})
            if "text/html" in data:
                parts.append("".join(data["text/html"]).strip())
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    opened = read(place)
    execute(opened)
    place.write_text(json.dumps(opened, indent=1, ensure_ascii=False) + "\n", "utf-8")
