"""Saying what to install when a part is missing."""

import importlib.util

from hushbit.errors import MissingExtra


def need_lab() -> None:
    """Refuse kindly where the lab's packages are not installed; imports none of them."""
    for package in ("torch", "sklearn", "pyarrow", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"this command needs {package}: pip install 'hushbit[lab]'")
