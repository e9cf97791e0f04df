"""Hooks of mkdocs: pages from other files, links between them, and the command-line reference."""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).parent))
from docs_notebook import read, to_markdown

REPOSITORY = Path(__file__).parents[1]
PROJECT_PAGES = {  # a file of the repository, and its page on the site
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changes.md",
    "examples/quickstart-hushbit/README.md": "project/flower-example.md",
}
NOTEBOOK_PAGES = {"docs/tutorial.ipynb": "tutorial.md"}
COMMANDS_PAGE, COMMANDS_MARK = "reference/command-line.md", "<!-- commands -->"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Do not build 404.html: only a web server shows it, and its links work only on a server."""
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and those of notebooks with their stored outputs."""
    texts = {
        page: (REPOSITORY / source).read_text("utf-8") for source, page in PROJECT_PAGES.items()
    }
    for source, page in NOTEBOOK_PAGES.items():
        texts[page] = to_markdown(read(REPOSITORY / source))
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert links from paths of the repository to pages of the site; insert the commands."""
    here = page.file.src_uri
    if here == COMMANDS_PAGE:
        markdown = markdown.replace(COMMANDS_MARK, "\n".join(command_lines()))
    source = {site: path for path, site in PROJECT_PAGES.items()}.get(here, f"docs/{here}")
    return LINK.sub(lambda link: site_link(link, source, here), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Add the accessible name that the search dialog of the theme lacks."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def site_link(link: re.Match[str], source: str, here: str) -> str:
    """A link of the file `source`, as it must be on the page `here`.

    A link to a file that is not on the site becomes plain text with the path. A link to a file that
    does not exist stays as it is, and the strict build reports it.
    """
    text, path, anchor = link[1], link[2], link[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (REPOSITORY / target).is_dir():
        target += "/README.md"
    if target in PROJECT_PAGES or target.startswith("docs/"):
        page = PROJECT_PAGES.get(target, target.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor})"
    if not (REPOSITORY / target).exists():
        return link[0]
    return f"`{target}`" if text.strip("`") == target else f"{text} (`{target}`)"


def command_lines() -> Iterator[str]:
    """The command-line reference in Markdown, from the application itself."""
    from typer.main import get_command

    from hushbit.lab.cli import COMMANDS, build_app, load_command

    yield from describe(get_command(build_app()), "hushbit")
    for name in COMMANDS:
        yield from describe(load_command(name), f"hushbit {name}")


def describe(command: Any, name: str) -> Iterator[str]:
    """One command and its subcommands; those of `hushbit` are described by `command_lines`."""
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"## {name} {{#{name.replace(' ', '-')}}}\n"
    yield f"{command.help}\n"
    yield f"```\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```\n"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield f"`{record[0]}`\n:   {record[1] or '—'}\n"
    below = getattr(command, "commands", {}) if name != "hushbit" else {}
    for key, part in below.items():
        yield from describe(part, f"{name} {key}")
