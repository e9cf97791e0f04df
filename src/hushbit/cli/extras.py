"""Saying what to install when a part is missing."""

import importlib

from hushbit.errors import MissingExtra


def need_lab() -> None:
    """Refuse kindly where the lab's packages are not installed."""
    for package in ("torch", "sklearn", "pyarrow", "matplotlib"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(
                f"this command needs {package}: pip install 'hushbit[lab]'"
            ) from error
