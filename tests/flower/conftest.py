"""Leave out the tests of hushbit.flower where Flower is not installed."""

import importlib.util

collect_ignore_glob = ["app/*"] if importlib.util.find_spec("flwr") else ["*.py", "app/*"]
