"""The page of a plan: its predictions against the library, offline use and accessibility."""

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hushbit as hb
from browser import open_browser, scheme, size
from hushbit.errors import InvalidInput
from hushbit.lab.report.plan_page import BITS_PER_WEIGHT, write_plan_page
from hushbit.tuning.plan import plan

ROOT = Path(__file__).parents[3]
WIDE, NARROW = (1280, 900), (390, 844)
AXE = """
const done = arguments[arguments.length - 1];
axe.run({ preload: false }).then((found) => done(found.violations.map(
  (rule) => rule.id + ": " + rule.nodes.map((node) => node.target + " " + node.failureSummary))));
"""


def budget(epsilon: float, delta: float, per: str, against: str) -> dict[str, Any]:
    return {"budget": hb.Budget(epsilon, delta, per=per, against=against)}


def library(users: int, rounds: int, **options: Any) -> dict[str, float]:
    option = plan(650, users, rounds=rounds, snr_db=0.0, **options).best
    stated = option.statement
    return {
        "snr": option.snr_db,
        "bytes": option.message_bytes,
        "needed": float(option.users_needed or 0),
        "perBit": stated.epsilon_bit,
        "message": stated.epsilon_message_server,
        "server": stated.epsilon_run_server,
        "model": stated.epsilon_run_model,
    }


# Without a browser


def test_the_page_contains_everything_and_starts_at_the_plan() -> None:
    made = plan(650, 1234, rounds=7, epsilon_per_bit=0.7)
    text = write_plan_page(made, bits_per_entry=0.3)
    assert "http:" not in text
    assert "https:" not in text
    data = json.loads(text.split('id="plan-data">')[1].split("</script>")[0])
    assert {1234, 15, 20, 100_000} <= set(data["stops"]["users"])
    assert all(isinstance(number, int) for number in data["stops"]["users"])
    assert 7 in data["stops"]["rounds"]
    assert 0.7 in data["stops"]["epsilon"]
    assert len(data["bits"]) == len(BITS_PER_WEIGHT) + 1
    assert data["tally"] is None


def test_a_page_without_privacy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="finite epsilon"):
        write_plan_page(plan(650, 100, epsilon_per_bit=float("inf")))


@pytest.mark.parametrize(("honest", "epsilon"), [(3, 0.14), (24, 0.8), (64, 2.0), (12, 6.7)])
def test_the_stored_divergences_are_those_of_the_accountant(honest: int, epsilon: float) -> None:
    path = ROOT / "tools/tally_excess.py"
    spec = importlib.util.spec_from_file_location("tally_excess", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    table = json.loads(tool.TARGET.read_text("utf-8"))
    place = tool.VOTERS.index(honest) * len(tool.EPSILONS) + tool.EPSILONS.index(epsilon)
    assert len(table["excess"]) == len(tool.VOTERS) * len(tool.EPSILONS)
    assert table["excess"][place] == pytest.approx(tool.log_excesses(honest, epsilon), abs=0.011)


# In a browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from open_browser(tmp_path_factory.mktemp("profile"))


def open_plan(driver: Any, folder: Path, *, honest: float | None = None, **options: Any) -> str:
    made = plan(650, 100, rounds=10, snr_db=0.0, honest=honest, **options)
    path = folder / "plan.html"
    path.write_text(write_plan_page(made, honest=honest), encoding="utf-8")
    driver.get_log("browser"), driver.get_log("performance")
    driver.get(path.as_uri())
    return path.as_uri()


BIT = [  # users, rounds, epsilon, position of the bits per weight
    (1000, 10, 0.5, 3),
    (20_000, 300, 2.0, 4),
    (100, 1, 0.1, 2),
    (100, 40, 4.0, 6),
]
SERVER = [(1000, 10, 8.0), (100, 60, 30.0), (5000, 1, 1.0)]
MODEL = [(100, 60, 2.0), (50, 5, 8.0)]


def check(
    driver: Any, values: dict[str, float], expected: dict[str, float], slack: float = 0.02
) -> None:
    """Sizes are equal, no epsilon is below the library's or, by `slack`, above it.

    The SNR is within 0.1 dB, or lower where the slack makes the page use more noise.
    """
    found = driver.execute_script("return predict(arguments[0])", values)
    assert found["bytes"] == expected["bytes"]
    lower = 20 * math.log10(1 + slack)
    assert expected["snr"] - max(0.1, lower) <= found["snr"] <= expected["snr"] + 0.1
    assert found["needed"] == pytest.approx(expected["needed"], rel=2 * slack, abs=1)
    for name in ("perBit", "message", "server", "model"):
        if found[name] is None:
            assert expected[name] == float("inf")
        else:
            # A budget that is spent by a larger bound leaves less epsilon for each bit.
            low = 1 - 1e-9 if slack == 0.02 or name == "model" else 1 - slack
            assert low * expected[name] <= found[name] <= (1 + slack) * expected[name], name


@pytest.mark.browser
def test_predictions_per_bit_are_those_of_the_library(driver: Any, tmp_path: Path) -> None:
    open_plan(driver, tmp_path, epsilon_per_bit=0.5)
    for users, rounds, epsilon, place in BIT:
        number = BITS_PER_WEIGHT[place]
        expected = library(users, rounds, epsilon_per_bit=epsilon, bits_per_entry=number)
        values = {"users": users, "rounds": rounds, "epsilon": epsilon, "bits": place}
        check(driver, values, expected)


@pytest.mark.browser
@pytest.mark.parametrize("per", ["message", "run"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_predictions_against_the_server_are_those_of_the_library(
    driver: Any, tmp_path: Path, per: str, delta: float
) -> None:
    open_plan(driver, tmp_path, **budget(8, delta, per, "server"))
    for users, rounds, epsilon in SERVER:
        expected = library(users, rounds, **budget(epsilon, delta, per, "server"))
        values = {"users": users, "rounds": rounds, "epsilon": epsilon, "bits": 0}
        check(driver, values, expected)


@pytest.mark.browser
def test_predictions_against_the_model_are_those_of_the_library(
    driver: Any, tmp_path: Path
) -> None:
    open_plan(driver, tmp_path, honest=0.9, **budget(4, 1e-5, "run", "model"))
    for users, rounds, epsilon in MODEL:
        options = budget(epsilon, 1e-5, "run", "model")
        expected = library(users, rounds, honest=0.9, **options)
        values = {"users": users, "rounds": rounds, "epsilon": epsilon, "bits": 0}
        check(driver, values, expected)


@pytest.mark.browser
@pytest.mark.parametrize("epsilon", [0.1, 0.9, 1.5, 3.0])
def test_tallies_of_a_local_mechanism_are_never_understated(
    driver: Any, tmp_path: Path, epsilon: float
) -> None:
    """Between the stored values; 10 to 240 voters are quick for the accountant."""
    open_plan(driver, tmp_path, honest=1.0, epsilon_per_bit=0.5)
    for users, rounds in ((10, 3), (70, 40), (240, 1)):
        expected = library(users, rounds, honest=1.0, epsilon_per_bit=epsilon)["model"]
        values = {"users": users, "rounds": rounds, "epsilon": epsilon, "bits": 3}
        found = driver.execute_script("return predict(arguments[0])", values)["model"]
        assert found >= expected
        if epsilon < 1 and users > 100:
            assert found <= 1.02 * expected


@pytest.mark.browser
def test_the_keyboard_moves_a_slider_and_the_figures_follow(driver: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    size(driver, *WIDE)
    open_plan(driver, tmp_path, epsilon_per_bit=0.5)
    slider = driver.find_element("id", "users")
    for _ in range(2):
        slider.send_keys(Keys.ARROW_RIGHT)
    expected = library(200, 10, epsilon_per_bit=0.5)

    def text(name: str) -> str:
        return str(driver.find_element("id", name).text)

    assert slider.get_attribute("aria-valuetext") == text("users-value") == "200"
    assert text("snr") == f"{expected['snr']:.1f} dB".replace("-", "−")
    shown = float(text("server").split()[1].replace(",", ""))
    assert expected["server"] <= shown <= 1.02 * expected["server"]
    assert text("server-unit") == "per run of 10 rounds at delta 1e\N{NON-BREAKING HYPHEN}5"
    noise = 10 ** (-expected["snr"] / 20)
    assert text("error") == f"noise {noise:.2g} times the mean update"
    assert text("model") == "not proved"


@pytest.mark.browser
@pytest.mark.parametrize("shape", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_works_offline_and_is_accessible(
    driver: Any, tmp_path: Path, shape: tuple[int, int], theme: str
) -> None:
    import axe_playwright_python

    size(driver, *shape, mobile=shape == NARROW)
    scheme(driver, theme)
    address = open_plan(driver, tmp_path, honest=1.0, epsilon_per_bit=0.5)
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (theme == "light")
    width = driver.execute_script("return document.documentElement.scrollWidth")
    assert width <= shape[0], "the page scrolls sideways"
    end = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
    for part in (".tiles", "form"):
        assert driver.execute_script(end, part) <= shape[1], f"{part} needs scrolling"
    driver.execute_script(Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text())
    assert driver.execute_async_script(AXE) == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [params["request"]["url"] for params in sent] == [address]
    assert driver.get_log("browser") == []
