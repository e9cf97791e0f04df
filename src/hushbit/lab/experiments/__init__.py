"""Experiments: settings, cells and claims.

CATALOGUE holds the names, titles and texts of all experiments, which commands show without torch.
"""

import tomllib
from importlib import resources

CATALOGUE = tomllib.loads((resources.files(__name__) / "catalogue.toml").read_text("utf-8"))
