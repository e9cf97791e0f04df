"""The mechanisms that CPA is compared with, all through the one protocol."""

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.jopeq import JoPEQ
from hushbit.baselines.laplace import Laplace, WholeLaplace
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signrr import SignRR
from hushbit.mechanism import Mechanism

mechanisms_by_name: dict[str, type[Mechanism]] = {
    "fedavg": FedAvg,
    "laplace": Laplace,
    "signsgd": SignRR,
    "jopeq": JoPEQ,
    "mvu": MVU,
}

__all__ = ["MVU", "FedAvg", "JoPEQ", "Laplace", "SignRR", "WholeLaplace", "mechanisms_by_name"]
