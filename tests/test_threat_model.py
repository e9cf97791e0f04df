"""Every test that docs/threat-model.md names exists, and every page that it links to."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("docs/threat-model.md", "SECURITY.md")
TEXT = (ROOT / PAGES[0]).read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[^`]*)`", TEXT)))


def test_the_page_names_tests_for_every_adversary() -> None:
    sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert len(sections) == 7  # one for each adversary
    for section in sections:
        assert "`tests/" in section, section.split("\n")[0]


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_is_defined(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert name.startswith("test_")
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text("utf-8"))
    assert links
    for link in links:
        assert ((ROOT / page).parent / link).is_file(), link
