"""Accessibility of the page: structure for screen readers and keyboards, contrast; no network."""

import itertools
import re
from importlib import resources

import pytest

from hushbit.lab.report.html import write_page
from hushbit.lab.report.sections import report_document
from hushbit.lab.report.sources import Sources, read_sources
from lab.report.report_samples import lines_result, run_folder, table_result
from lab.report.report_tree import parse

CSS = (resources.files("hushbit.lab.report") / "style.css").read_text()
PAIR = r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
COLOURS = {name: (light, dark) for name, light, dark in re.findall(PAIR, CSS)}
TEXT = ("ink", "ink-soft", "accent", "good", "bad", "mark")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run_folder(folder / "cpa")
    run_folder(folder / "stopped", finished=False)
    results = (table_result(), lines_result(points=30, quick=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hushbit.lab.report.html.plotting_library", lambda: "var Plotly;")
        return parse(
            write_page(report_document(Sources(results, read_sources([folder]).runs), "All"))
        )


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_matches_the_values_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("background", ["paper", "raised"])
@pytest.mark.parametrize("name", [*TEXT, *(f"series-{n}" for n in range(8))])
def test_text_and_lines_have_enough_contrast(name, background, theme):
    assert contrast(COLOURS[name][theme], COLOURS[background][theme]) >= 4.5


def test_printed_text_has_enough_contrast():
    assert "--paper: #ffffff" in CSS
    assert all(contrast(COLOURS[name][0], "#ffffff") >= 4.5 for name in TEXT)


def test_colours_are_defined_in_one_place():
    rest = re.sub(PAIR, "", CSS).replace("--paper: #ffffff", "")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsl", rest)
    used = set(re.findall(r"var\(--([\w-]+)\)", CSS)) - {"serif", "sans", "mono"}
    assert used <= set(COLOURS)


def test_heading_levels_increase_by_one(tree):
    levels = [int(node.name[1]) for node in tree.named("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_landmarks_language_and_skip_link(tree):
    assert tree.named("html")[0].attributes["lang"] == "en"
    for name in ("header", "main", "nav", "footer"):
        assert len(tree.named(name)) == 1
    first = tree.named("a", "button")[0]
    assert first.attributes["class"] == "skip"
    assert first.attributes["href"] == "#" + tree.named("main")[0].attributes["id"]
    assert tree.named("main")[0].attributes["tabindex"] == "-1"


def test_ids_are_unique_and_links_have_targets(tree):
    names = [node.attributes["id"] for node in tree if "id" in node.attributes]
    assert len(names) == len(set(names))
    for node in tree:
        for key in ("aria-labelledby", "aria-describedby"):
            assert node.attributes.get(key, names[0]) in names
    links = [node.attributes["href"] for node in tree.named("a")]
    assert len(links) > 5
    assert all(link.startswith("#") and link[1:] in names for link in links)


def test_tables_have_captions_and_scopes_and_keyboard_focus(tree):
    tables = tree.named("table")
    assert len(tables) > 10
    for table in tables:
        assert [n.name for n in table.inside].count("caption") == 1
        heads = [n for n in table.inside if n.name == "th"]
        assert {n.attributes["scope"] for n in heads} == {"col", "row"}
        box = table.parents[-1]
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["role"] == "group"
        assert box.attributes["aria-label"]


def test_every_plot_has_a_caption_and_a_table(tree):
    figures = tree.named("figure")
    count = len(figures)  # the repr of nodes is endless
    assert count == 3 + 2 + 2 + 4
    for figure in figures:
        inside = [node.name for node in figure.inside]
        assert inside.count("figcaption") == inside.count("table") == inside.count("details") == 1
        drawing = next(n for n in figure.inside if n.attributes.get("class") == "drawing")
        caption_id = drawing.attributes["aria-describedby"]
        caption = next(n.text for n in figure.inside if n.attributes.get("id") == caption_id)
        assert len(caption.split()) > 5


def test_no_element_makes_a_network_request(tree):
    for node in tree:
        assert not {"src", "srcset", "action", "data", "poster"} & set(node.attributes)
    assert not tree.named("link", "img", "iframe", "object", "base")
    assert "url(" not in CSS
    assert "@import" not in CSS


def test_summary_is_first(tree):
    sections = tree.named("section")
    assert sections[0].attributes["id"] == "summary"
    text = sections[0].text
    assert "1 of 2 claims hold; 1 does not." in text
    assert "Run: cpa" in text
    assert text.count("SNR of corrected at least 3 dB above authors") == 1
    assert "authors within 3 points" not in text
    assert "Too short to judge:\nSNR against epsilon." in text
