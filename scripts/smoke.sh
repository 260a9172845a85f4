#!/usr/bin/env bash
# A short part of a suite that make test-all runs whole; .ci/run runs each. Assumes .venv with requirements test, torch, site
# and browser, and Chromium.
# usage: scripts/smoke.sh site|browser|integrations LIBCADRE
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-}
export CADRE_LIBRARY=${2:?usage: scripts/smoke.sh site|browser|integrations LIBCADRE}
python=$PWD/.venv/bin/python
results=build/smoke/test-results
mkdir -p "$results"

case $suite in
  site) PYTHON=$python scripts/site.sh "$CADRE_LIBRARY" ;;
  browser)
    PYTHONPATH=bindings/python "$python" -m pytest -q tests/browser -m smoke --junit-xml="$results/browser.xml"
    ;;
  integrations) # transformers in a folder of its own: .venv is to have what make test installs, and no more
    "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target build/smoke/transformers \
      -r requirements/transformers.txt
    PYTHONPATH=bindings/python:build/smoke/transformers "$python" -m pytest -q \
      tests/python/torch_front/test_torch_transformers.py -m smoke --junit-xml="$results/integrations.xml"
    ;;
  *) echo "smoke.sh: unknown suite '$suite', expected: site browser integrations" >&2 && exit 2 ;;
esac
