"""Mechanisms of other papers, for comparison, with the protocol of `hushbit.mechanism`."""

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.gaussian import Gaussian
from hushbit.baselines.jopeq import JoPEQ
from hushbit.baselines.laplace import Laplace, WholeLaplace
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR

__all__ = ["MVU", "FedAvg", "Gaussian", "JoPEQ", "Laplace", "SignRR", "WholeLaplace"]
