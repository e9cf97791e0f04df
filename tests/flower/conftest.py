"""Tests of the Flower part are left out where Flower is not installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
