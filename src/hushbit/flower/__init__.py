"""hushbit in Flower: a client mod that sends private ballots, and a strategy that counts them."""

from hushbit.budget import Budget
from hushbit.defence.defence import Defence
from hushbit.errors import MissingExtra
from hushbit.flower.client import ClientApp, HushbitMod
from hushbit.flower.node_policy import node_policy, simulation_policy
from hushbit.flower.policy import Policy
from hushbit.flower.refusals import RequestRefused
from hushbit.flower.server_round import users_by_partition
from hushbit.flower.strategy import HushbitStrategy, ModelUnchanged, load_secret

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtra("hushbit.flower needs Flower: pip install 'hushbit[flower]'") from error

__all__ = [
    "Budget",
    "ClientApp",
    "Defence",
    "HushbitMod",
    "HushbitStrategy",
    "ModelUnchanged",
    "Policy",
    "RequestRefused",
    "load_secret",
    "node_policy",
    "simulation_policy",
    "users_by_partition",
]
