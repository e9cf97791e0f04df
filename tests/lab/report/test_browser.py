"""The page in a real browser: first screen, plots, themes, phone, print; no requests, no errors."""

import base64
import json
from pathlib import Path

import pytest

from browser import open_browser, scheme, size
from hushbit.lab.report import write_report
from lab.report.report_samples import NASTY, lines_result, run_folder, table_result

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    yield from open_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    table_result(about=NASTY).save(folder / "results")
    lines_result().save(folder / "results")
    lines_result(points=30, name="convergence", quick=True).save(folder / "results")
    run_folder(folder / "runs" / "<script>alert(1)<")
    run_folder(folder / "runs" / "fedavg", mechanism="fedavg")
    places = [folder / "results", folder / "runs"]
    return write_report(places, folder / "report.html").html.as_uri()


@pytest.fixture
def closed(driver, page):
    """The page on a desktop in the light theme, as it opens."""
    driver.get_log("browser"), driver.get_log("performance")
    size(driver, 1280, 900)
    scheme(driver, "light")
    driver.get(page)
    driver.execute_script("localStorage.clear()")
    drawn(driver)
    return driver


@pytest.fixture
def opened(closed):
    """The same with every section open, and all plots drawn."""
    open_all(closed)
    return closed


def open_all(driver):
    driver.execute_script(
        "document.querySelectorAll('.entry > details').forEach(part => { part.open = true; })"
    )
    undrawn = "return document.querySelectorAll('.drawing:not(:has(.main-svg))').length"
    wait_until(driver, lambda: driver.execute_script(undrawn) == 0)


def wait_until(driver, condition):
    """Plots are redrawn some time after the event that asks for it: wait, at most a minute."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 60, poll_frequency=0.05).until(lambda _: condition())


def drawn(driver):
    present = "return document.documentElement.dataset.drawn !== undefined"
    wait_until(driver, lambda: driver.execute_script(present))


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def show(driver, element):
    where = "{block: 'center', behavior: 'instant'}"
    driver.execute_script(f"arguments[0].scrollIntoView({where})", element)


def luminance(driver, script):
    """Mean of the RGB values of the colour that a script returns, from 0 to 255."""
    text = driver.execute_script(f"return {script}")
    return sum(float(part) for part in text[text.index("(") + 1 :].rstrip(")").split(",")[:3]) / 3


PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "getComputedStyle(document.querySelector('.drawing .xtick text')).fill"


def wait_for_light_page(driver):
    wait_until(driver, lambda: luminance(driver, PAPER) > 200 > 120 > luminance(driver, INK))


def wait_for_dark_page(driver):
    wait_until(driver, lambda: luminance(driver, PAPER) < 50 < 150 < luminance(driver, INK))


def shown_traces(driver, number=0):
    return driver.execute_script(
        "return document.querySelectorAll('.drawing')[arguments[0]].querySelectorAll("
        "'.scatterlayer .trace').length",
        number,
    )


def test_every_plot_is_drawn_without_console_messages(opened):
    plots = find(opened, "figure.plot")
    assert len(plots) == 3 + 2 + 2 + 2 + 4
    for number, plot in enumerate(plots):
        data = json.loads(plot.find_element("css selector", "script").get_attribute("textContent"))
        assert shown_traces(opened, number) == len(data["data"])
        assert plot.find_element("css selector", ".main-svg").size["width"] > 200
        assert plot.find_elements("css selector", ".legend button")
    assert opened.get_log("browser") == []


AXE = """
const done = arguments[arguments.length - 1];
axe.run({ preload: false }).then((found) => done(found.violations.map(
  (rule) => rule.id + ": " + rule.nodes.map((node) => node.target + " " + node.failureSummary))));
"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_screen_has_the_result_and_is_accessible(closed, page, width, theme):
    import axe_playwright_python

    size(closed, width, 844, mobile=width == 390)
    scheme(closed, theme)
    closed.get(page)
    drawn(closed)
    for selector in (".card .best", ".card dd b", ".conclusion"):
        box = find(closed, selector)[0].rect
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844, selector
    library = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    closed.execute_script(library)
    assert closed.execute_async_script(AXE) == []
    open_all(closed)
    assert closed.execute_async_script(AXE) == []
    assert closed.get_log("browser") == []


def test_sections_open_by_link_and_the_contents_stay_in_view(closed):
    link = find(closed, '.contents a[href="#nested"]')[0]
    section = find(closed, "#nested > details")[0]
    assert section.get_attribute("open") is None
    link.click()
    assert section.get_attribute("open") is not None
    wait_until(closed, lambda: find(closed, "#nested .main-svg"))
    closed.execute_script("scrollTo({top: 1500, behavior: 'instant'})")
    assert closed.execute_script("return arguments[0].getBoundingClientRect().top", link) >= 0
    assert closed.get_log("browser") == []


def test_no_request_leaves_the_page(opened, page):
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert page in asked
    assert [url for url in asked if url != page and not url.startswith(("data:", "blob:"))] == []
    titles = [e.get_attribute("data-title").lower() for e in find(opened, ".modebar-btn")]
    assert titles
    assert not [title for title in titles if "cloud" in title or "share" in title]


def test_markup_in_names_is_shown_and_not_run(opened):
    text = opened.execute_script("return document.body.textContent")
    assert NASTY in text
    assert "<script>alert(1)<" in text
    assert not find(opened, "main img")
    names = [e.text for e in find(opened, ".legend button span")]
    assert "<script>alert(1)<" in names


def test_the_legend_hides_and_shows_lines(opened):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    number = next(n for n, f in enumerate(find(opened, "figure.plot")) if "SNR" in f.text)
    buttons = find(find(opened, "figure.plot")[number], ".legend button")
    before = shown_traces(opened, number)
    show(opened, buttons[0])
    buttons[0].click()
    assert buttons[0].get_attribute("aria-pressed") == "false"
    assert shown_traces(opened, number) < before
    buttons[0].send_keys(Keys.ENTER)
    assert buttons[0].get_attribute("aria-pressed") == "true"
    assert shown_traces(opened, number) == before
    ActionChains(opened).double_click(buttons[0]).perform()
    row = find(buttons[0].find_element("xpath", ".."), "button")
    assert [b.get_attribute("aria-pressed") for b in row] == ["true"] + ["false"] * (len(row) - 1)
    ActionChains(opened).double_click(buttons[0]).perform()
    assert shown_traces(opened, number) == before


def test_hovering_shows_values_and_dragging_zooms(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    figures = find(opened, "figure.plot")
    drawing = next(find(f, ".drawing")[0] for f in figures if find(f, ".points path"))
    show(opened, drawing)
    point = find(drawing, ".scatterlayer .points path")
    ActionChains(opened).move_to_element(point[0]).pause(0.4).perform()
    assert find(drawing, ".hoverlayer .hovertext")
    show(opened, drawing)
    before = opened.execute_script("return arguments[0].layout.xaxis.range", drawing)
    ActionChains(opened).move_to_element(drawing).click_and_hold().move_by_offset(90, 50).pause(
        0.2
    ).release().pause(0.4).perform()
    after = opened.execute_script("return arguments[0].layout.xaxis.range", drawing)
    assert after[1] - after[0] < 0.9 * (before[1] - before[0])


def test_a_plot_can_be_saved_as_an_image(opened):
    made = opened.execute_async_script(
        "const done = arguments[0];"
        "Plotly.toImage(document.querySelector('.drawing'), {format: 'png'}).then(done, done)"
    )
    assert made.startswith("data:image/png;base64,")


def test_dragging_on_a_touch_screen_scrolls_the_page(opened, page):
    mode = "return document.querySelector('.drawing').layout.dragmode"
    assert opened.execute_script(mode) == "zoom"
    touch = "Emulation.setTouchEmulationEnabled"
    opened.execute_cdp_cmd(touch, {"enabled": True, "maxTouchPoints": 1})
    opened.get(page)
    drawn(opened)
    assert opened.execute_script(mode) is False
    opened.execute_cdp_cmd(touch, {"enabled": False})


def test_theme_follows_the_system_and_the_button(opened):
    wait_for_light_page(opened)
    scheme(opened, "dark")
    wait_for_dark_page(opened)
    theme = find(opened, "#theme")[0]
    theme.click()
    assert theme.text == "Theme: light"
    wait_for_light_page(opened)
    theme.click()
    assert theme.text == "Theme: dark"
    scheme(opened, "light")
    wait_for_dark_page(opened)
    theme.click()
    assert theme.text == "Theme: system"
    wait_for_light_page(opened)


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_needs_no_horizontal_scrolling(opened, page, width):
    size(opened, width, 844, mobile=True)
    opened.get(page)
    drawn(opened)
    open_all(opened)
    assert opened.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [
        width,
        width,
    ]
    wide = opened.execute_script(
        "const scrolling = '.box *, .contents *, pre *, .hidden, svg *';"
        "return [...document.querySelectorAll(`body *:not(${scrolling})`)].filter("
        "e => e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert wide == 0
    boxes = find(opened, ".box")
    assert any(b.get_property("scrollWidth") > b.get_property("clientWidth") for b in boxes)


def test_print_is_light_and_unfolds_notes(opened):
    scheme(opened, "dark")
    wait_for_dark_page(opened)
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert luminance(opened, INK) < 120  # the browser prints at once, so this may not take time
    assert find(opened, ".main-svg")[0].size["width"] == 660
    folded = "return document.querySelectorAll('.part:not([open]), .entry > :not([open])').length"
    assert opened.execute_script(folded) == 0
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    wait_for_dark_page(opened)
    assert opened.execute_script(folded) == 2
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = [
        e.is_displayed() for e in find(opened, ".modebar, .bar, .skip, .plot details, .contents")
    ]
    assert len(shown) > 10
    assert not any(shown)
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    made = opened.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    pdf = base64.b64decode(made["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    assert "printing" not in opened.execute_script("return {...document.documentElement.dataset}")
    assert opened.get_log("browser") == []


def test_first_tab_stop_skips_to_the_content(opened):
    from selenium.webdriver.common.keys import Keys

    opened.find_element("css selector", "body").send_keys(Keys.TAB)
    assert opened.switch_to.active_element.get_attribute("class") == "skip"
    opened.switch_to.active_element.send_keys(Keys.ENTER)
    assert opened.switch_to.active_element.get_attribute("id") == "content"
