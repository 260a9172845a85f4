#!/usr/bin/env bash
# Builds the static site into build/site/html: documents, the API from the docstrings, the report of the committed results.
# A link that leads nowhere, in a document or to a heading, fails the build. usage: scripts/site.sh LIBCADRE
set -euo pipefail
cd "$(dirname "$0")/.."

library=${1:?usage: scripts/site.sh LIBCADRE}
python=${PYTHON:-.venv/bin/python}
mkdir -p build/site
PYTHONPATH=bindings/python CADRE_LIBRARY=$library "$python" -m cadre.report --skip-unknown bench/results/*/*.json \
  -o build/site/report.html
python3 scripts/site_sources.py build/site/sources build/site/report.html
log=build/site/log
if ! NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --clean >"$log" 2>&1; then
  grep -v '^INFO' "$log" >&2
  exit 1
fi
# Nothing may be loaded from elsewhere when a page is looked at.
if grep -rnoE '<(script|link|img|iframe)[^>]+(src|href)="?(https?:)?//[^ ">]+' build/site/html --include='*.html' | grep -v 'rel="\?canonical'; then
  echo "site.sh: these pages load something from a network" >&2
  exit 1
fi
echo "build/site/html/index.html: $(find build/site/html -name '*.html' | wc -l) pages"
