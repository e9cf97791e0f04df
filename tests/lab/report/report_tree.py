"""HTML pages as lists of elements, with the parser of the standard library."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input"}


@dataclass(eq=False)
class Node:
    """An element with all the text inside it."""

    name: str
    attributes: dict[str, str]
    parents: tuple["Node", ...]
    text: str = ""
    inside: list["Node"] = field(default_factory=list)


class Tree(HTMLParser):
    """All elements in order; raises if an element is not closed properly."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: list[Node] = []
        self._open: list[Node] = []

    def __iter__(self):
        return iter(self.nodes)

    def named(self, *names):
        return [node for node in self.nodes if node.name in names]

    def handle_starttag(self, tag, attributes):
        node = Node(tag, {k: v or "" for k, v in attributes}, tuple(self._open))
        assert len(node.attributes) == len(attributes), f"{tag} has an attribute twice"
        for parent in self._open:
            parent.inside.append(node)
        self.nodes.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop().name == tag

    def handle_data(self, text):
        for node in self._open:
            node.text += text

    def closed(self):
        assert not self._open
        return self


def parse(page):
    tree = Tree()
    tree.feed(page)
    tree.close()
    return tree.closed()
