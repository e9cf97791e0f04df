"""Command-line options made from the fields of `Settings`, so that they never differ."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hushbit.fl.settings import FIELDS, Settings, kind_of, read_settings


def with_settings(command: Callable[..., None], leave_out: tuple[str, ...] = ()) -> Any:
    """Give a command one option for each field; it gets those that were named, as a dict."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "named"]
    names = [name for name in FIELDS if name not in leave_out]

    def run(**options: Any) -> None:
        named = {name: options.pop(name) for name in names}
        command(named={k: v for k, v in named.items() if v is not None}, **options)

    made = [_parameter(name) for name in names]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + made
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def settings_from(named: dict[str, Any], config: Path | None) -> Settings:
    """Defaults, overridden by a TOML file, overridden by what the command line names."""
    return Settings(**options_from(named, config))


def options_from(named: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """What a TOML file and the command line name; the command line wins."""
    return ({} if config is None else read_settings(config)) | named


def _parameter(name: str) -> inspect.Parameter:
    """An option that is None unless named; the help tells the default."""
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
