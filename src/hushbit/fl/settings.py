"""Everything that decides a run, in one flat record: the options of `hushbit run`."""

import dataclasses
import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from hushbit.checks import choice, positive, real, whole
from hushbit.errors import InvalidInput

PARTITIONS = ("per-user", "iid", "dirichlet", "shards", "writer")
ATTACKS = (
    "none", "ones", "flip", "directed", "directed-stealth", "scaled", "inner-product", "little",
    "sybils", "adaptive", "label-flip", "backdoor",
)  # fmt: skip
DEFENCES = (
    "none", "spectral", "median", "trimmed-mean", "norm-clipping", "krum", "multi-krum", "bulyan",
    "sign-majority",
)  # fmt: skip
SCHEDULES = ("constant", "decay")
RATES = {"digits": 0.3}
PARTITION_OF = {
    "samples_per_user": "per-user",
    "replace": "per-user",
    "alpha": "dirichlet",
    "shards_per_user": "shards",
}


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """A run. Privacy parameters have no defaults: a private mechanism asks for its epsilon."""

    dataset: str = _option("digits", "digits, mnist, fashion-mnist, cifar10 or cifar100.")
    model: str = _option("linear", "linear, mlp, cnn2, cnn3 or resnet18.")
    weights_file: str | None = _option(None, "First weights of resnet18; random otherwise.")
    users: int = _option(100, "Number of users.")
    partition: str = _option("per-user", "per-user, iid, dirichlet, shards or writer.")
    samples_per_user: int = _option(5, "Samples of each user (partition per-user).")
    replace: bool = _option(False, "Let users share samples (partition per-user).")
    alpha: float = _option(0.5, "Concentration (partition dirichlet).")
    shards_per_user: int = _option(2, "Shards of each user (partition shards).")
    validation: int = _option(0, "Training samples held out for validation.")
    rounds: int = _option(30, "Rounds of federated learning.")
    participation: float = _option(1.0, "Share of users that take part in a round.")
    mechanism: str = _option(
        "cpa", "fedavg, cpa, cpa-auto, cpa-no-rr, nested, laplace, signsgd, jopeq or mvu."
    )
    epsilon_per_bit: float | None = _option(None, "Privacy of each bit (of each entry elsewhere).")
    epsilon_per_message: float | None = _option(None, "Privacy of a whole ballot (cpa-auto).")
    message_delta: float | None = _option(None, "Delta of --epsilon-per-message; 0 for pure.")
    k: int | None = _option(None, "k-anonymity of each block and round (cpa-auto).")
    bits_per_weight: float | None = _option(None, "Bits of each weight (cpa-auto).")
    radius: float | None = _option(
        None, "Outermost point: entries beyond it are cut. Default 0.05."
    )
    points: int | None = _option(None, "Points of cpa; k-anonymity is half of it.")
    stages: str | None = _option(None, "Points of each stage of nested, as in 2,8.")
    lattice: str | None = _option(None, "Z, A2, D4 or E8 (cpa, nested); Z or A2 (jopeq).")
    rounding: str | None = _option(None, "stochastic, dithered, subtractive or nearest.")
    words: str | None = _option(None, "hadamard or uniform.")
    preset: str | None = _option(None, "corrected, paper or authors; baselines: authors.")
    rotate: bool = _option(False, "Rotate updates before they are quantized.")
    clip: float | None = _option(None, "l2 clip of updates: a whole-message guarantee for cpa.")
    sign_step: float | None = _option(None, "Server step of signsgd, in weight units.")
    mode: str | None = _option(None, "honest, moment or layered (jopeq).")
    bits: int | None = _option(None, "Bits of each entry (mvu).")
    levels: int | None = _option(None, "Levels of each entry (jopeq).")
    rate: float | None = _option(None, "Local learning rate. Default: 0.3 for digits, else 0.03.")
    schedule: str = _option("constant", "constant, or decay as rate / (1 + round / 10).")
    steps: int = _option(1, "Local steps of each round.")
    batch_size: int = _option(16, "Samples of a local step.")
    optimizer: str = _option("sgd", "Local optimizer: sgd or adam.")
    momentum: float = _option(0.0, "Local momentum (sgd).")
    keep_momentum: bool = _option(False, "Keep local momentum between rounds.")
    server: str | None = _option(
        None, "Server step: plain, filter, momentum, adam or yogi. Default: filter for cpa-auto."
    )
    server_rate: float = _option(1.0, "Server learning rate.")
    server_momentum: float | None = _option(None, "Server momentum (server momentum).")
    average_weights: bool = _option(False, "Evaluate the average of all rounds' models.")
    attack: str = _option("none", f"{', '.join(ATTACKS[:-1])} or {ATTACKS[-1]}.")
    attackers: float = _option(0.0, "Share of users that attack.")
    defence: str = _option("none", f"{', '.join(DEFENCES[:-1])} or {DEFENCES[-1]}.")
    seed: int = _option(0, "Decides data split, start, batches and simulated coins.")
    evaluate_every: int = _option(1, "Test the model every so many rounds.")
    memory_mb: float = _option(16.0, "Memory for updates held at once.")
    delta: float = _option(1e-5, "Delta at which (epsilon, delta) figures are stated.")

    def __post_init__(self) -> None:
        for name in ("users", "samples_per_user", "rounds", "steps", "batch_size",
                     "evaluate_every", "shards_per_user"):  # fmt: skip
            whole(name, getattr(self, name), 1)
        whole("validation", self.validation, 0)
        whole("seed", self.seed, 0)
        for name in ("server_rate", "memory_mb", "alpha"):
            positive(name, getattr(self, name))
        if self.rate is not None:
            positive("rate", self.rate)
        choice("partition", self.partition, PARTITIONS)
        choice("attack", self.attack, ATTACKS)
        choice("defence", self.defence, DEFENCES)
        choice("schedule", self.schedule, SCHEDULES)
        if not 0 < real("participation", self.participation) <= 1:
            raise InvalidInput(f"participation must lie in (0, 1]; got {self.participation}")
        if not 0 <= real("attackers", self.attackers) < 1:
            raise InvalidInput(f"attackers must lie in [0, 1); got {self.attackers}")
        if (self.attack == "none") != (self.attackers == 0):
            raise InvalidInput(
                f"attack {self.attack!r} with a share of {self.attackers} attackers does not fit: "
                "give both --attack and --attackers, or neither"
            )
        self._refuse_unused()
        if not 0 < real("delta", self.delta) < 1:
            raise InvalidInput(f"delta must lie in (0, 1); got {self.delta}")

    def _refuse_unused(self) -> None:
        """Refuse options of another partition or optimizer, which would be passed over."""
        for name, partition in PARTITION_OF.items():
            if self.partition != partition and getattr(self, name) != FIELDS[name].default:
                flag = "--" + name.replace("_", "-")
                raise InvalidInput(f"{flag} fits --partition {partition} only; leave it out")
        if self.keep_momentum and self.optimizer == "sgd" and self.momentum == 0:
            raise InvalidInput("--keep-momentum needs --momentum or --optimizer adam")

    @property
    def local_rate(self) -> float:
        """The local learning rate, where none is given one that suits the data."""
        return self.rate if self.rate is not None else RATES.get(self.dataset, 0.03)

    @property
    def server_name(self) -> str:
        """The server step, where none is given the one that suits the mechanism."""
        usual = "filter" if self.mechanism == "cpa-auto" else "plain"
        return usual if self.server is None else self.server

    def resolved(self) -> "Settings":
        """The same run with the defaults that depend on other options written out."""
        return dataclasses.replace(self, rate=self.local_rate, server=self.server_name)

    def to_toml(self) -> str:
        """The record as TOML; what is not set is left out."""
        lines = []
        for name, value in dataclasses.asdict(self).items():
            if value is None:
                continue
            if isinstance(value, bool):
                text = str(value).lower()
            elif isinstance(value, str):
                text = json.dumps(value, ensure_ascii=False)
            elif isinstance(value, float) and math.isinf(value):
                text = "inf"
            else:
                text = repr(value)
            lines.append(f"{name} = {text}")
        return "\n".join(lines) + "\n"


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}


def read_settings(path: Path) -> dict[str, Any]:
    """Options from a TOML file; unknown names are refused."""
    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from error
    unknown = sorted(set(options) - set(FIELDS))
    if unknown:
        raise InvalidInput(f"{path} has unknown options: {', '.join(unknown)}")
    return {name: _typed(name, value) for name, value in options.items()}


def kind_of(name: str) -> type:
    """The type of an option, apart from None."""
    declared = FIELDS[name].type
    kinds = get_args(declared) or (declared,)
    return next(kind for kind in kinds if kind is not type(None))


def _typed(name: str, value: Any) -> Any:
    kind = kind_of(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise InvalidInput(f"{name} must be {kind.__name__}; got {value!r}")
    return value
