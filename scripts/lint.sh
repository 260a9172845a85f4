#!/usr/bin/env bash
# Everything that is checked without running the program: formatting, include directions, the regressions table,
# clang-tidy. Goes on after a failure, and says at the end what failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

failed=()
check() {
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}

check "formatting" scripts/format.sh --check
check "include directions" python3 scripts/check_includes.py
check "regressions table" python3 scripts/check_regressions.py
check "links in the docs" python3 scripts/check_docs.py
check "clang-tidy" python3 scripts/run_tidy.py

if ((${#failed[@]})); then
  printf 'lint failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "lint passed"
