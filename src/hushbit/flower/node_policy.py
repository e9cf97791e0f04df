"""The policy of a node: the file that its operator names, or that of a simulated user.

Simulated users have no private data. Their policy limits nothing, charges every ballot to a ledger
of its own for each partition and run, and reports failures of training. It cannot be used in a
deployment: a policy with `simulation=True` is refused outside of the simulation engine.
"""

import getpass
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from flwr.app import Context

from hushbit.flower.policy import (
    ALLOWED_MECHANISMS,
    LATTICES,
    POLICY_KEY,
    PRESETS,
    Policy,
)
from hushbit.flower.refusals import RequestInvalid
from hushbit.lattice.quantizer import ROUNDINGS

WRAPPINGS = ("", "Rotated/", "Subset/", "Rotated/Subset/")
DELTA = 1e-5  # of the totals in the ledger; the policy has no limit that it could change


def in_simulation() -> bool:
    """Whether this process is a worker of Flower's simulation engine.

    The engine runs client apps in Ray actors; a SuperNode runs them in processes of its own. No
    message, configuration or environment variable decides which of them this is.
    """
    ray: Any = sys.modules.get("ray")
    return (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    )


def simulation_policy(context: Context) -> Policy:
    """The policy of a simulated user, with a ledger for its partition and this run."""
    partition = context.node_config.get("partition-id", context.node_id)
    folder = simulation_ledgers(context.run_id)
    return Policy(
        epsilon_per_bit=math.inf,
        epsilon_per_message=math.inf,
        budget=math.inf,
        delta=DELTA,
        l2_clip=math.inf,
        ledger=folder / f"partition-{partition}.db",
        mechanisms=tuple(
            vote + wrapping + name
            for vote in ("", "NormVote/")
            for wrapping in WRAPPINGS
            for name in ALLOWED_MECHANISMS
        ),
        presets=PRESETS,
        roundings=ROUNDINGS,
        lattices=LATTICES,
        max_points=4096,
        allow_unproven=True,
        requests_per_day=10**9,
        simulation=True,
        user=f"simulated user {partition}",
    )


def simulation_ledgers(run_id: int) -> Path:
    """The folder of the ledgers of one simulated run, in the system's folder of temporary files."""
    account = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # Windows has no getuid
    top = Path(tempfile.gettempdir()) / f"hushbit-simulation-{account}"
    folder = top / f"run-{run_id}"
    for place in (top, folder):
        place.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and top.lstat().st_uid != account:
        raise RequestInvalid(f"{top} belongs to another account: remove it, or set TMPDIR")
    return folder


def node_policy(context: Context) -> Policy:
    """The policy in the file that the node configuration names: hushbit-policy="PATH".

    Without a file, a worker of the simulation engine gets the policy of a simulated user, and a
    node of a deployment refuses. The configuration of the run is not used, because it comes from
    the person who starts the run.
    """
    path = context.node_config.get(POLICY_KEY)
    if isinstance(path, str):
        return Policy.load(path)
    if in_simulation():
        return simulation_policy(context)
    raise RequestInvalid(
        f"this node has no policy: start it with --node-config '{POLICY_KEY}=\"PATH\"'"
    )
