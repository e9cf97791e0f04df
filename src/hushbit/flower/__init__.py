"""hushbit in Flower: a client mod that sends private ballots, and a strategy that counts them."""

from hushbit.errors import MissingExtra
from hushbit.flower.client import HushbitMod
from hushbit.flower.description_limits import RequestRefused
from hushbit.flower.policy import Policy, node_policy
from hushbit.flower.server_round import users_by_partition
from hushbit.flower.strategy import HushbitStrategy
from hushbit.wire.keys import load_secret

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtra("hushbit.flower needs Flower: pip install 'hushbit[flower]'") from error

__all__ = [
    "HushbitMod",
    "HushbitStrategy",
    "Policy",
    "RequestRefused",
    "load_secret",
    "node_policy",
    "users_by_partition",
]
