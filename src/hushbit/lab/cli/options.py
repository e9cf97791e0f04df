"""Command-line options generated from the fields of `Settings`, so that the two never differ."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hushbit.lab.sim.settings import FIELDS, Settings, kind_of, read_settings

Command = Callable[..., None]
DataFolder = Annotated[
    Path | None, typer.Option(help="Data folder; default: HUSHBIT_DATA, else the user's cache.")
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with options; the command line overrides it.")
]


def with_settings(*, leave_out: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Give a command one option per field; its parameter `named` gets those that were given."""
    names = [name for name in FIELDS if name not in leave_out]

    def decorate(command: Command) -> Command:
        def run(**options: Any) -> None:
            given = {name: options.pop(name) for name in names}
            command(named={k: v for k, v in given.items() if v is not None}, **options)

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "named"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [_parameter(name) for name in names]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return decorate


def settings_from(named: dict[str, Any], config: Path | None) -> Settings:
    """Defaults, overridden by a TOML file, overridden by what the command line names."""
    return Settings(**options_from(named, config))


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
    option = typer.Option(flag, help=text, show_default=False)
    annotation = Annotated[Optional[kind], option]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
