"""The secret of simulated runs: anybody can know it."""

import hashlib

from hushbit.checks import whole


def simulation_secret(seed: int) -> bytes:
    """The 32 bytes that server and simulated users share in a run of this seed."""
    return hashlib.sha256(f"hushbit simulation {whole('seed', seed, 0)}".encode()).digest()
