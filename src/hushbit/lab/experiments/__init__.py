"""The experiments by name; add one line to add one."""

from hushbit.lab.experiments.accuracy import ACCURACY, ACCURACY_CIFAR
from hushbit.lab.experiments.architectures import (
    ARCHITECTURES,
    ARCHITECTURES_CIFAR,
    CONVERGENCE,
    CONVERGENCE_CNN2,
)
from hushbit.lab.experiments.base import Experiment, Findings, Lab
from hushbit.lab.experiments.budgets import ACCURACY_EPSILON, SNR_EPSILON
from hushbit.lab.experiments.distortions import EPSILON, USERS
from hushbit.lab.experiments.malicious import MALICIOUS, MALICIOUS_CIFAR
from hushbit.lab.experiments.nested import NESTED
from hushbit.lab.experiments.nmse import NMSE
from hushbit.lab.experiments.resnet import RESNET
from hushbit.lab.experiments.robustness import ROBUSTNESS
from hushbit.lab.experiments.shares import SHARES_OF_ATTACKERS
from hushbit.lab.experiments.theorem1 import THEOREM1
from hushbit.lab.experiments.theorem2 import THEOREM2
from hushbit.lab.experiments.whole_message import WHOLE_MESSAGE

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        SNR_EPSILON,
        ACCURACY_EPSILON,
        USERS,
        EPSILON,
        ARCHITECTURES,
        CONVERGENCE,
        NESTED,
        MALICIOUS,
        THEOREM1,
        THEOREM2,
        ARCHITECTURES_CIFAR,
        CONVERGENCE_CNN2,
        MALICIOUS_CIFAR,
        RESNET,
        NMSE,
        ACCURACY,
        ACCURACY_CIFAR,
        ROBUSTNESS,
        SHARES_OF_ATTACKERS,
        WHOLE_MESSAGE,
    )
}  # fmt: skip

__all__ = ["EXPERIMENTS", "Experiment", "Findings", "Lab"]
