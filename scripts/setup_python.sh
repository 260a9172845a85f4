#!/usr/bin/env bash
# Makes .venv, or brings it up to date, for the Python tests and scripts.
# usage: scripts/setup_python.sh [requirements/NAME.txt ...]   default: requirements/test.txt
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=("$@")
((${#requirements[@]})) || requirements=(requirements/test.txt)

if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  echo "Creating the virtual environment .venv"
  rm -rf .venv
  python3 -m venv .venv
fi

# One stamp for each file: its checksum when it was last installed.
mkdir -p .venv/installed
for file in "${requirements[@]}"; do
  stamp=.venv/installed/$(basename "$file").sha256
  if [[ -f $stamp ]] && sha256sum --check --status "$stamp"; then
    continue
  fi
  echo "Installing $file into .venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$file"
  sha256sum "$file" >"$stamp"
done
