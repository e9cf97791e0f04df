"""Leave out the tests of hushbit.flower where Flower is not installed."""

import importlib.util

APPS = ["app/*", "plain_apps/*"]
if importlib.util.find_spec("torch") is None:
    APPS.append("simulated.py")  # the program of a slow test, which needs the lab
collect_ignore_glob = APPS if importlib.util.find_spec("flwr") else ["*.py", *APPS]
