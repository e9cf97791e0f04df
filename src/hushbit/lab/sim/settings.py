"""`Settings`: all options of `hushbit run` in one flat record, read from and written to TOML."""

import dataclasses
import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hushbit.checks import check_choice, check_float, check_int, check_positive
from hushbit.errors import InvalidInput
from hushbit.lab.attacks import ATTACKS
from hushbit.lab.sim.robust_means import ROBUST_MEANS

if TYPE_CHECKING:
    from hushbit.budget import Budget

CONFIG = "config.toml"  # the file of a run folder that holds the settings
PARTITIONS = ("per-user", "iid", "dirichlet", "shards", "writer")
ATTACK_CHOICES = ("none", *ATTACKS)
DEFENCES = ("none", "scores", *ROBUST_MEANS)
MECHANISMS = (
    "fedavg",
    "gaussian",
    "cpa",
    "cpa-auto",
    "cpa-no-rr",
    "nested",
    "laplace",
    "signsgd",
    "jopeq",
    "mvu",
)
ALIASES = {"vanilla": "fedavg", "nested-cpa": "nested", "signsgd-rr": "signsgd"}
CHOICES = {
    "dataset": ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100"),
    "model": ("linear", "mlp", "cnn2", "cnn3", "resnet18"),
    "schedule": ("constant", "decay"),
    "optimizer": ("sgd", "adam"),
    "server": ("plain", "filter", "momentum", "adam", "yogi"),
}
"""Names that modules of the simulator define, repeated here so that a wrong name is refused before
torch and Numba are loaded."""

PIXELS = ("unit", "symmetric")
SHOWN_DELTA = 1e-5  # delta of figures that are shown, unless --delta is given
UNIT_RATE = 0.5  # for pixels in [0, 1]
SYMMETRIC_RATES = {"digits": 0.3}
SYMMETRIC_RATE = 0.03
PAPER_TRAINING: dict[str, Any] = {"pixels": "symmetric", "batch_size": 16}
"""Inputs and local batches of the published code, which reproductions keep."""

PARTITION_OPTIONS = {
    "samples_per_user": "per-user",
    "replace": "per-user",
    "alpha": "dirichlet",
    "shards_per_user": "shards",
}

BUDGET_OPTIONS = ("epsilon", "delta", "per", "against")
DATA_OPTIONS = ("pixels", "weights_file", "validation", "partition", *PARTITION_OPTIONS)
"""Options of the built-in tasks."""


def _option(default: Any, text: str, low: int | None = None) -> Any:
    """An option with its help text; `low` is the smallest value of a whole number."""
    return field(default=default, metadata={"help": text, "low": low})


def _choice(default: str, text: str, names: tuple[str, ...]) -> Any:
    """An option that takes one of the names."""
    text = f"{text}: {', '.join(names[:-1])} or {names[-1]}."
    return field(default=default, metadata={"help": text, "names": names})


def mechanism_name(name: str) -> str:
    """The canonical name of a mechanism; aliases are resolved."""
    known = ALIASES.get(name, name)
    if known not in MECHANISMS:
        raise InvalidInput(f"unknown mechanism {name!r}; choose one of {', '.join(MECHANISMS)}")
    return known


@dataclass(frozen=True)
class Settings:
    """All options of one run. Privacy parameters have no default values."""

    task: str | None = _option(
        None, "Task to train, instead of --dataset and --model: a file and a name, my_task.py:task."
    )
    dataset: str = _option("digits", "Data set: digits, mnist, fashion-mnist, cifar10, cifar100.")
    pixels: str = _choice(
        "unit", "Range of the inputs, [0, 1] or [-1, 1] as in the published code", PIXELS
    )
    model: str = _option("linear", "Model: linear, mlp, cnn2, cnn3 or resnet18.")
    weights_file: str | None = _option(
        None, "File with the initial weights of resnet18; default: random weights."
    )
    users: int = _option(100, "Number of users.", low=1)
    copies: int = _option(
        1,
        "Users that each trained user stands for in the aggregate; only where the aggregate is "
        "drawn from its distribution, as in hushbit reproduce.",
        low=1,
    )
    partition: str = _choice("per-user", "How samples are split among users", PARTITIONS)
    samples_per_user: int = _option(5, "Samples per user (partition per-user).", low=1)
    replace: bool = _option(False, "Draw samples with replacement (partition per-user).")
    alpha: float = _option(0.5, "Concentration of the Dirichlet distribution (dirichlet).")
    shards_per_user: int = _option(2, "Shards per user (partition shards).", low=1)
    validation: int = _option(0, "Number of training samples held out for validation.", low=0)
    rounds: int = _option(30, "Number of rounds.", low=1)
    participation: float = _option(1.0, "Share of users that take part in each round.")
    mechanism: str = _option("cpa", f"Mechanism: {', '.join(MECHANISMS[:-1])} or {MECHANISMS[-1]}.")
    epsilon_per_bit: float | None = _option(
        None, "Local-DP epsilon per bit (per weight for laplace, jopeq, mvu)."
    )
    epsilon: float | None = _option(
        None, "Epsilon of the privacy budget; needs --delta, --per and --against."
    )
    delta: float | None = _option(
        None,
        "Delta of the privacy budget; 0 for a pure budget. Without a budget: delta of the figures "
        "shown, 1e-5 unless given.",
    )
    per: str | None = _option(None, "Unit of the privacy budget: bit, message or run.")
    against: str | None = _option(
        None,
        "Observer of the privacy budget: server (sees ballots) or model (sees only tallies "
        "and models).",
    )
    accountant: str | None = _option(
        None,
        "How epsilon against the model is computed: renyi (default), or tightest, the smaller of "
        "two proved bounds, which may need less noise.",
    )
    honest: float | None = _option(
        None,
        "Voters in each round who keep their coins secret, for guarantees against the model: a "
        "whole number of voters (1 is one voter), or with a decimal point a share of those who "
        "take part (1.0 is all of them). Default: all but the attackers.",
    )
    k: int | None = _option(None, "Minimum k-anonymity of a block in one round (cpa-auto).")
    bits_per_weight: float | None = _option(None, "Bits per weight (cpa-auto).")
    radius: float | None = _option(
        None, "Largest magnitude of a quantized entry; larger ones are clipped. Default: 0.05."
    )
    points: int | None = _option(
        None, "Number of quantization points (cpa); k-anonymity is half this number."
    )
    stages: str | None = _option(None, "Points of each stage, as in 2,8 (nested).")
    lattice: str | None = _option(None, "Lattice: Z, A2, D4 or E8 (cpa, nested).")
    rounding: str | None = _option(None, "Rounding: stochastic, dithered, subtractive or nearest.")
    words: str | None = _option(None, "Family of words: hadamard or uniform.")
    preset: str | None = _option(
        None, "Preset: corrected, paper or authors; baselines accept only authors."
    )
    rotate: bool | None = _option(
        None,
        "Apply a random rotation to updates before quantization. Default: for cpa under a budget "
        "only.",
    )
    clip: float | None = _option(
        None,
        "Largest l2 norm of an update (l2 clip); gives a guarantee for the whole message (cpa).",
    )
    noise_multiplier: float | None = _option(
        None, "Standard deviation of the noise in the sum, divided by --clip (gaussian)."
    )
    sign_step: float | None = _option(None, "Server step size of signsgd, in units of weights.")
    mode: str | None = _option(None, "Noise calibration: honest or moment (jopeq).")
    levels: int | None = _option(None, "Quantization levels per weight (jopeq).")
    rate: float | None = _option(
        None,
        "Local learning rate. Default: 0.5; with --pixels symmetric 0.3 for digits, else 0.03.",
    )
    schedule: str = _option(
        "constant", "Learning-rate schedule: constant, or decay as rate / (1 + round / 10)."
    )
    steps: int = _option(1, "Local steps per round.", low=1)
    batch_size: int | None = _option(
        None, "Samples per local step; default: all samples of the user.", low=1
    )
    optimizer: str = _option("sgd", "Local optimizer: sgd or adam.")
    momentum: float = _option(0.0, "Momentum of the local optimizer (sgd).")
    keep_momentum: bool = _option(False, "Keep the state of the local optimizers between rounds.")
    server: str | None = _option(
        None,
        "Server step: plain, filter, momentum, adam or yogi. Default: filter for cpa-auto, "
        "else plain.",
    )
    server_rate: float | None = _option(
        None, "Server learning rate. Default: 1; under a budget chosen from clip, noise and rounds."
    )
    server_momentum: float | None = _option(None, "Momentum of the server step (momentum).")
    average_weights: bool = _option(False, "Evaluate the average of the models of all rounds.")
    attack: str = _choice("none", "Attack", ATTACK_CHOICES)
    attackers: float = _option(0.0, "Share of users that attack.")
    defence: str = _choice("none", "Defence", DEFENCES)
    seed: int = _option(0, "Seed of data split, weights, batches and simulated coins.", low=0)
    evaluate_every: int = _option(1, "Number of rounds between evaluations of the model.", low=1)
    patience: int | None = _option(
        None,
        "Stop after this many rounds without a higher test accuracy. The privacy statement still "
        "counts --rounds.",
        low=1,
    )
    memory_mb: float = _option(16.0, "Memory in MB for updates that are held at once.")

    def __post_init__(self) -> None:
        for name, option in FIELDS.items():
            low, names = option.metadata.get("low"), option.metadata.get("names")
            value = getattr(self, name)
            if low is not None and (value is not None or option.default is not None):
                check_int(name, value, low)
            if names is not None:
                check_choice(name, value, names)
        for name in ("memory_mb", "alpha"):
            check_positive(name, getattr(self, name))
        for name in ("rate", "server_rate", "clip"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        mechanism_name(self.mechanism)
        for name, names in CHOICES.items():
            defined_by_task = self.task is not None and name in ("dataset", "model")
            if getattr(self, name) is not None and not defined_by_task:
                check_choice(name, getattr(self, name), names)
        if not 0 < check_float("participation", self.participation) <= 1:
            raise InvalidInput(f"participation must lie in (0, 1]; got {self.participation}")
        if not 0 <= check_float("attackers", self.attackers) < 1:
            raise InvalidInput(f"attackers must lie in [0, 1); got {self.attackers}")
        if (self.attack == "none") != (self.attackers == 0):
            raise InvalidInput(
                f"--attack is {self.attack!r} and --attackers is {self.attackers}: "
                "give both --attack and --attackers, or neither"
            )
        self._check_unused()
        self._check_privacy()

    def _check_unused(self) -> None:
        """Raise for options that the chosen partition or optimizer would ignore."""
        for name, partition in PARTITION_OPTIONS.items():
            if self.partition != partition and getattr(self, name) != FIELDS[name].default:
                flag = "--" + name.replace("_", "-")
                raise InvalidInput(
                    f"{flag} applies to --partition {partition} only, not to {self.partition}; "
                    "leave it out"
                )
        if self.task is not None:
            unused = [name for name in DATA_OPTIONS if getattr(self, name) != FIELDS[name].default]
            if unused:
                flag = "--" + unused[0].replace("_", "-")
                raise InvalidInput(f"--task defines the data and the users: leave {flag} out")
        if self.keep_momentum and self.optimizer == "sgd" and self.momentum == 0:
            raise InvalidInput("--keep-momentum needs --momentum or --optimizer adam")

    def _check_privacy(self) -> None:
        """Raise for a budget that is incomplete or wrong, and for a wrong delta or honest."""
        if self.honest is not None:
            number = check_positive("honest", self.honest)
            if isinstance(self.honest, float) and number > 1:
                raise InvalidInput(
                    "honest is a whole number of voters, such as 900, or a share of at most 1 with "
                    f"a decimal point, such as 0.9; got {self.honest}"
                )
        parts = {name: getattr(self, name) for name in BUDGET_OPTIONS}
        missing = [f"--{name}" for name, value in parts.items() if value is None]
        if self.accountant is not None and missing:
            raise InvalidInput(
                "--accountant applies to a budget only: give --epsilon, --delta, --per and "
                "--against too, or leave it out"
            )
        if set(missing) >= {"--epsilon", "--per", "--against"}:
            if self.delta is not None and not 0 < check_float("delta", self.delta) < 1:
                raise InvalidInput(f"delta must lie in (0, 1) without a budget; got {self.delta}")
        elif missing:
            raise InvalidInput(
                "a privacy budget has four parts, none with a default value; missing: "
                f"{', '.join(missing)}. Example: --epsilon 4 --delta 1e-5 --per run "
                "--against model"
            )
        elif self.epsilon_per_bit is not None:
            raise InvalidInput(
                "give --epsilon-per-bit or a budget (--epsilon, --delta, --per, --against), "
                "not both"
            )
        elif mechanism_name(self.mechanism) == "fedavg":
            raise InvalidInput(
                "mechanism fedavg has no privacy and cannot spend a budget: leave out the budget "
                "(--epsilon, --delta, --per, --against), or choose another mechanism"
            )
        else:
            _ = self.budget  # checks the parts

    @property
    def budget(self) -> "Budget | None":
        """The privacy budget; None if the settings have none."""
        if self.epsilon is None or self.delta is None or self.per is None or self.against is None:
            return None
        from hushbit.budget import Budget

        return Budget(
            self.epsilon,
            self.delta,
            per=self.per,
            against=self.against,
            accountant=self.accountant or "renyi",
        )

    @property
    def shown_delta(self) -> float:
        """The delta of figures that are shown, which is above 0."""
        return self.delta or SHOWN_DELTA

    @property
    def local_rate(self) -> float:
        """The local learning rate; by default the one for the pixels and the data set."""
        if self.rate is not None:
            return self.rate
        if self.pixels == "unit":
            return UNIT_RATE
        return SYMMETRIC_RATES.get(self.dataset, SYMMETRIC_RATE)

    @property
    def server_name(self) -> str:
        """The server step; by default the one for the mechanism."""
        if self.server is not None:
            return self.server
        return "filter" if self.mechanism == "cpa-auto" else "plain"

    @property
    def rotates_by_default(self) -> bool:
        """Whether updates are rotated if the option is not given."""
        return self.epsilon is not None and self.mechanism == "cpa"

    def resolved(self) -> "Settings":
        """The same run, with defaults that depend on other options filled in."""
        server_rate = 1.0 if self.epsilon is None and not self.server_rate else self.server_rate
        return dataclasses.replace(
            self,
            rate=self.local_rate,
            server=self.server_name,
            server_rate=server_rate,
            rotate=self.rotates_by_default if self.rotate is None else self.rotate,
        )

    def given(self) -> dict[str, Any]:
        """The options that have a value, by name, defaults included."""
        options = dataclasses.asdict(self.resolved())
        return {name: value for name, value in options.items() if value is not None}

    def to_toml(self) -> str:
        """The settings as TOML, without options that are None or that a task does not have."""
        lines = []
        for name, value in dataclasses.asdict(self).items():
            if value is None or (self.task is not None and name in DATA_OPTIONS):
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


def check_rotation(mechanism: str, rotate: bool | None) -> None:
    """Refuse a wish that has no effect; stored settings of cpa-auto have `rotate` false, too."""
    if mechanism == "cpa-auto" and rotate is False:
        raise InvalidInput("mechanism cpa-auto always rotates updates: leave --no-rotate out")


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}


def read_settings(path: Path) -> dict[str, Any]:
    """Read options from a TOML file, named with hyphens or underscores.

    Unknown names and names given twice raise `InvalidInput`.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from error
    options = {name.replace("-", "_"): value for name, value in found.items()}
    twice = sorted(name for name in found if "-" in name and name.replace("-", "_") in found)
    if twice:
        raise InvalidInput(f"{path} has options twice, with - and with _: {', '.join(twice)}")
    unknown = sorted(set(options) - set(FIELDS))
    if unknown:
        raise InvalidInput(
            f"{path} has unknown options: {', '.join(unknown)}; see hushbit run --help"
        )
    return {name: _typed(name, value) for name, value in options.items()}


def kind_of(name: str) -> type:
    """The type of an option, without None."""
    declared = FIELDS[name].type
    kinds = get_args(declared) or (declared,)
    return next(kind for kind in kinds if kind is not type(None))


def _typed(name: str, value: Any) -> Any:
    kind = kind_of(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return value if name == "honest" else float(value)  # 1 is one voter, 1.0 all of them
    if type(value) is not kind:
        raise InvalidInput(f"{name} must be {kind.__name__}; got {value!r}")
    return value
