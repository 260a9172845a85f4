"""One page to look at benchmark results with: python -m cadre.report results/*.json -o report.html.

results.py reads the files, figures.py chooses what is drawn, plot.py draws it as SVG, page.py puts it into the template.
"""

from .page import page
from .results import UnknownResults, of_document, read

__all__ = ["UnknownResults", "of_document", "page", "read"]
