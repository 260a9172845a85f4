"""A griffe extension for the site: examples and tables of plain docstrings become code blocks of Markdown."""

import itertools

import griffe


def _kind(line):
    """What a line begins: an example, a table (indented lines), or neither."""
    if line.startswith((">>> ", "... ")):
        return "pycon"
    return "text" if line.startswith("  ") else None


def fenced(text):
    """The docstring with fences around its examples, with what they print, and around indented lines."""
    blocks, example = [], False
    for line in text.split("\n"):
        kind = _kind(line)
        if kind == "pycon":
            example = True
        elif not line.strip():
            example = False
        blocks.append(("pycon" if example else kind if line.strip() else None, line))
    lines = []
    for kind, group in itertools.groupby(blocks, key=lambda block: block[0]):
        body = [line for _, line in group]
        lines += body if kind is None else ["", f"```{kind}", *body, "```", ""]
    return "\n".join(lines)


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
