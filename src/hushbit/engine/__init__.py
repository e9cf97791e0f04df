"""Engines: the same jobs in this process, in several on this machine, or on a Ray cluster.

An engine maps jobs to results and merges them in a tree whose shape depends on the number of jobs
alone, so that even sums of floats have the same bits whatever the engine and the workers.
"""

from hushbit.engine.alone import Alone
from hushbit.engine.choose import ENGINES, chosen_engine
from hushbit.engine.cluster import Ray
from hushbit.engine.local import Local
from hushbit.engine.tree import Engine, MergeTree

__all__ = ["ENGINES", "Alone", "Engine", "Local", "MergeTree", "Ray", "chosen_engine"]
