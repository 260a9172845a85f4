"""What there is to look at of `cadre compare`'s answer: bars among its lines, and a page.

Without --report the page is PAGE in the current folder, if the answer is printed on a terminal. A file of that name that is
none of its pages stays as it is.
"""

import importlib.util
import os
import shutil
from pathlib import Path

PAGE = "cadre-compare.html"
#: Stands in every page of `cadre compare`, near its beginning.
GENERATOR = "cadre compare"
_MARK = f'<meta name="generator" content="{GENERATOR}">'
_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLUMNS, _LONGEST_BAR = 80, 60


class Bars:
    """Lines of text whose width shows a share: on a terminal to its right edge, piped to column 80."""

    def __init__(self, stream, left):
        """`left`: the columns before a bar."""
        columns = shutil.get_terminal_size((_COLUMNS, 24)).columns if stream.isatty() else _COLUMNS
        self.width = min(_LONGEST_BAR, max(8, columns - left - 1))
        try:
            _EIGHTHS.encode(getattr(stream, "encoding", None) or "utf-8")
            self._smooth = True
        except (UnicodeEncodeError, LookupError):
            self._smooth = False

    def bar(self, share):
        """`share` of the longest bar, 0 to 1; never nothing."""
        if not self._smooth:
            return "#" * max(1, round(self.width * share))
        whole, part = divmod(max(1, round(8 * self.width * share)), 8)
        return ("█" * whole + _EIGHTHS[part]).rstrip()


def check_target(option, file):
    """Seen before the measuring, so that a wrong name costs no minute."""
    if file is None:
        return
    target = Path(file)
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise ValueError(f"{option} = {file}, expected a file in a folder that exists and can be written to")
    if not target.name or target.is_dir():
        raise ValueError(f"{option} = {file}, expected a file, and that is a folder")
    if option == "--report" and importlib.util.find_spec("jinja2") is None:
        raise NotImplementedError(f"{option} = {file}, but jinja2 is not installed: pip install jinja2")


def _replace(target, text):
    temporary = target.with_name(f"{target.name}.partial-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, target)


def _page(name, document):
    from .. import report

    return report.page([report.of_document(name, document)], title="cadre compare", generator=GENERATOR)


def write_report(file, document, text):
    """Writes the page and beside it `text`, the results it was made of. Returns the page's file."""
    results, page = Path(file).with_suffix(".json"), Path(file).with_suffix(".html")
    _replace(results, text + "\n")
    _replace(page, _page(str(results), document))
    return page


def _is_ours(page):
    with page.open(encoding="utf-8", errors="replace") as opened:
        return _MARK in opened.read(1000)


def write_page(document):
    """Writes PAGE. Returns what to say about it."""
    page = Path(PAGE)
    if importlib.util.find_spec("jinja2") is None:
        return "No page to look at: jinja2 is not installed (pip install jinja2)."
    try:
        if (page.exists() or page.is_symlink()) and not (page.is_file() and _is_ours(page)):
            return f"No page to look at: {PAGE} is there and not of cadre compare. --report FILE writes another."
        _replace(page, _page(GENERATOR, document))
    except OSError as error:
        return f"No page to look at: {PAGE}: {error.strerror or error}. --report FILE writes another."
    return f"To look at: {page.absolute()}"
