#!/usr/bin/env bash
# Makes .venv, or brings it up to date, for the Python tests and scripts.
# usage: scripts/setup_python.sh NAME...   with requirements/NAME.txt: test, and the frameworks torch and jax
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  echo "Creating the virtual environment .venv"
  rm -rf .venv
  python3 -m venv .venv
fi

# One stamp for each file: its checksum when it was last installed.
mkdir -p .venv/installed
for name in "$@"; do
  file=requirements/$name.txt stamp=.venv/installed/$name.sha256
  if [[ -f $stamp ]] && sha256sum --check --status "$stamp"; then
    continue
  fi
  echo "Installing $file into .venv"
  if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$file"; then
    [[ $name == test ]] || echo "To test without this framework: make test FRONTS=" >&2
    exit 1
  fi
  sha256sum "$file" >"$stamp"
done
