"""Names and other people's text in Markdown: they stay what they are, whatever characters are in them."""

import re


def one_line(text: str) -> str:
    """Returns a text on one line, without control characters and marks that turn its direction."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def code(text: str) -> str:
    """Returns a text as a code span, in which nothing means anything to Markdown, HTML or a table."""
    return f"`{one_line(text).replace('`', '').replace('|', '/') or '?'}`"


def plain(text: str) -> str:
    """Returns a text for a heading or a sentence, with every sign escaped that Markdown or HTML reads."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~$:@^\"'=])", r"\\\1", one_line(text))
