"""Text of others in a log: it stays on its own line."""

MOST_CHARACTERS = 500


def one_line(text: object) -> str:
    r"""The text with line breaks and other unprintable characters escaped, cut to a fair length.

    >>> one_line("refused\nINFO : all is well")
    'refused\\nINFO : all is well'
    """
    short = str(text)[:MOST_CHARACTERS]
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in short)
