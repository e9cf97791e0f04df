"""hushbit in Flower: a client mod that sends private bits, a strategy that counts them."""

from hushbit.errors import MissingExtra

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtra("hushbit.flower needs Flower: pip install 'hushbit[flower]'") from error

from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import Policy, RequestRefused, node_policy
from hushbit.flower.roll import users_by_partition
from hushbit.flower.secret import load_secret
from hushbit.flower.strategy import HushbitStrategy

__all__ = [
    "HushbitMod",
    "HushbitStrategy",
    "Policy",
    "RequestRefused",
    "load_secret",
    "node_policy",
    "users_by_partition",
]
