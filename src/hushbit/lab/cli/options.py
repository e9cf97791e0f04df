"""Command-line options generated from the fields of `Settings`, so that the two never differ."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hushbit.lab.sim.settings import FIELDS, kind_of, read_settings

Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Parameters = list[inspect.Parameter]
KEYWORD = inspect.Parameter.KEYWORD_ONLY
DATA, TRAINING, PRIVACY = "Data", "Model and training", "Privacy"
SERVER, ATTACK, OUTPUT = "Server", "Attack and defence", "Output"
COMPUTATION = "Computation"
PANELS = {
    DATA: "task dataset pixels users copies partition samples_per_user replace alpha "
    "shards_per_user validation",
    TRAINING: "model weights_file rounds participation rate schedule steps batch_size optimizer "
    "momentum keep_momentum evaluate_every patience",
    PRIVACY: "mechanism epsilon_per_bit epsilon delta per against accountant honest k "
    "bits_per_weight radius points stages lattice rounding words preset rotate clip "
    "noise_multiplier sign_step mode levels",
    SERVER: "server server_rate server_momentum average_weights",
    ATTACK: "attack attackers defence",
    COMPUTATION: "seed memory_mb",
}
"""Fields of `Settings` by the panel of the help that lists them."""

PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder; default: HUSHBIT_DATA, else the user's cache.",
        rich_help_panel=DATA,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with options; the command line overrides it.")
]


def honest_of_text(text: str) -> float:
    """The value of --honest: with a decimal point it is a share, without one a number of voters.

    >>> honest_of_text("1"), honest_of_text("1.0"), honest_of_text("0.9")
    (1, 1.0, 0.9)
    """
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a number of voters, such as 900, nor a share with a decimal "
            "point, such as 0.9"
        ) from None


PARSERS: dict[str, Any] = {"honest": {"parser": honest_of_text, "metavar": "NUMBER"}}
"""Options that are not read by the type of their parameter."""


def output_flag(name: str, text: str) -> Any:
    """A flag in the panel of output."""
    return typer.Option(name, help=text, rich_help_panel=OUTPUT)


def output_path(text: str) -> Any:
    """A file or folder in the panel of output; the parameter names the option."""
    return typer.Option(help=text, rich_help_panel=OUTPUT)


def with_settings(*, leave_out: tuple[str, ...] = ()) -> Decorator:
    """Give a command one more option per field; its parameter `named` gets those that are given."""
    return _with_options([_parameter(name) for name in PANEL_OF if name not in leave_out])


def with_options_of(function: Callable[..., Any], texts: dict[str, str]) -> Decorator:
    """Give a command the parameters of a function as options, with help texts by name.

    The command's parameter `named` gets those that are given.
    """
    parameters = []
    for name, text in texts.items():
        declared = inspect.signature(function).parameters[name]
        kind: Any = declared.annotation
        annotation = Annotated[kind, typer.Option(help=text, **PARSERS.get(name, {}))]
        parameters.append(declared.replace(kind=KEYWORD, annotation=annotation))
    return _with_options(parameters)


def _with_options(more: Parameters) -> Decorator:
    """Give a command more options, listed before its own."""
    names = [parameter.name for parameter in more]

    def decorate(command: Command) -> Command:
        def run(**options: Any) -> None:
            given = {name: options.pop(name) for name in names}
            command(named={k: v for k, v in given.items() if v is not None}, **options)

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "named"]
        parameters = [*more, *(p.replace(kind=KEYWORD) for p in own)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return decorate


def options_from(named: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """Options of a TOML file, overridden by those of the command line."""
    return ({} if config is None else read_settings(config)) | named


def _parameter(name: str) -> inspect.Parameter:
    """An option that is None unless given; its help states the default."""
    field = FIELDS[name]
    kind = kind_of(name)
    text = field.metadata["help"]
    if field.default is not None and field.default is not False:
        text += f" \\[default: {field.default}]"
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        flag += f"/--no-{flag[2:]}"
    option = typer.Option(
        flag,
        help=text,
        show_default=False,
        rich_help_panel=PANEL_OF[name],
        **PARSERS.get(name, {}),
    )
    annotation = Annotated[Optional[kind], option]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(name, KEYWORD, default=None, annotation=annotation)
