"""The documentation site: its reference is complete, and its pages work offline in a browser."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hushbit as hb
import hushbit.baselines
from browser import open_browser, scheme, size
from hushbit.lab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = (
    "index.html",
    "tutorial.html",
    "step-by-step.html",
    "how-to/choose-a-budget.html",
    "reference/mechanisms.html",
    "reference/command-line.html",
    "performance.html",
)
SCHEMES = {"light": "default", "dark": "slate"}  # names of the system, and of the theme
WIDE, NARROW = (1280, 900), (390, 844)
# Without preload, axe itself requests no style sheets.
AXE = """
const done = arguments[arguments.length - 1];
axe.run({ preload: false }).then((found) => done(found.violations.map(
  (rule) => rule.id + ": " + rule.nodes.map((node) => node.target + " " + node.failureSummary))));
"""


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The reference


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
    named = re.findall(r"^::: (\S+)$", text, re.M)
    public = {f"hushbit.{name}" for name in hb.__all__}
    public |= {f"hushbit.baselines.{name}" for name in hushbit.baselines.__all__}
    assert public - set(named) == set()
    assert len(named) == len(set(named))


def test_every_command_and_option_is_in_the_reference() -> None:
    text = "\n".join(tool("site_pages").command_lines())
    assert [name for name in COMMANDS if f"\n## hushbit {name} {{" not in text] == []
    assert "\n## hushbit data verify {" in text
    assert "`--epsilon-per-bit FLOAT`\n:   Local-DP epsilon" in text


def test_docstrings_become_markdown() -> None:
    docstring = """Summary.

dim     entries of an update
radius  norm of the points,
        which are public

Plain text  with two spaces in a paragraph of
two lines.

>>> 1 + 1
2

    code  stays"""
    expected = """Summary.

`dim`
:   entries of an update

`radius`
:   norm of the points, which are public

Plain text  with two spaces in a paragraph of
two lines.

```pycon
>>> 1 + 1
2
```

    code  stays"""
    assert tool("site_docstrings").to_markdown(docstring) == expected


def test_links_lead_to_pages_of_the_site() -> None:
    pages = tool("site_pages")

    def converted(text: str, source: str, here: str) -> str:
        return pages.LINK.sub(lambda link: pages.site_link(link, source, here), text)

    contributing = ("CONTRIBUTING.md", "project/contributing.md")
    assert converted("[a](docs/privacy.md#b)", *contributing) == "[a](../privacy.md#b)"
    assert converted("[a](LICENSE)", *contributing) == "a (`LICENSE`)"
    assert converted("[LICENSE](LICENSE)", *contributing) == "`LICENSE`"
    assert converted("[a](absent.md)", *contributing) == "[a](absent.md)"
    assert converted("[a](https://b.c/d)", *contributing) == "[a](https://b.c/d)"
    flower = ("docs/flower.md", "flower.md")
    example = converted("[a](../examples/quickstart-hushbit)", *flower)
    assert example == "[a](project/flower-example.md)"


# In a browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from open_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, env=environment, check=True)
    return folder


def open_page(driver: Any, address: str, shape: tuple[int, int], theme: str) -> None:
    size(driver, *shape, mobile=shape == NARROW)
    scheme(driver, theme)
    driver.get_log("browser"), driver.get_log("performance")
    driver.get(address)


def requests(driver: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("shape", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", SCHEMES)
def test_a_page_works_offline_and_is_accessible(
    driver: Any, site: Path, page: str, shape: tuple[int, int], theme: str
) -> None:
    import axe_playwright_python

    address = (site / page).as_uri()
    open_page(driver, address, shape, theme)
    shown = driver.execute_script("return document.body.dataset.mdColorScheme")
    assert shown == SCHEMES[theme]
    width = driver.execute_script("return document.documentElement.scrollWidth")
    assert width <= shape[0], "the page scrolls sideways"
    driver.execute_script(Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text())
    assert driver.execute_async_script(AXE) == []
    asked = requests(driver)
    assert address in asked
    allowed = (site.as_uri(), "data:", "blob:", "about:")
    assert [url for url in asked if not url.startswith(allowed)] == []
    assert driver.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_a_page_without_a_server(driver: Any, site: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(driver, (site / "index.html").as_uri(), WIDE, "light")
    driver.find_element("css selector", "input.md-search__input").send_keys("budget")
    found = "a.md-search-result__link[href*='how-to/choose-a-budget.html']"
    wait = WebDriverWait(driver, 60, poll_frequency=0.1)
    wait.until(lambda _: driver.find_elements("css selector", found))
    assert driver.get_log("browser") == []
