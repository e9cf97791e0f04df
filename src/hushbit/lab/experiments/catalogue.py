"""The catalogue of experiments: their names, titles and texts, from catalogue.toml."""

import tomllib
from importlib import resources

CATALOGUE = tomllib.loads((resources.files(__package__) / "catalogue.toml").read_text("utf-8"))
