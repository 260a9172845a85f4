#!/usr/bin/env bash
# Prints a Python that is new enough to make an environment with: python3 itself, a pythonX.Y on PATH, or one of pyenv's.
# usage: scripts/find_python.sh 3.12      (exit status 1, and nothing printed, where there is none)
set -euo pipefail

if (($# != 1)); then
  sed -n 's/^# usage/usage/p' "$0" >&2
  exit 2
fi
candidates=(python3 python3.14 python3.13 python3.12 python3.11)
if command -v pyenv >/dev/null; then
  candidates+=("$(pyenv root)"/versions/3.*/bin/python3)
fi
for candidate in "${candidates[@]}"; do
  if "$candidate" -c "import ensurepip, sys, venv; sys.exit(sys.version_info < (${1/./, }))" 2>/dev/null; then
    command -v "$candidate"
    exit
  fi
done
exit 1
