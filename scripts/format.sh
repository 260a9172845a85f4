#!/usr/bin/env bash
# Reformats every C++ and CUDA source with the repository's .clang-format.
# usage: scripts/format.sh [--check]   with --check nothing is changed, and a file that would be is an error
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run --Werror)
git ls-files --cached --others --exclude-standard -- '*.h' '*.c' '*.cc' '*.cu' '*.cuh' '*.inc' |
  xargs --no-run-if-empty clang-format "${mode[@]}"
