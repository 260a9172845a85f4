#!/usr/bin/env bash
# Runs the C++ tests of a built preset, then the Python tests where there are any, and ends with one count of both.
# usage: scripts/run_tests.sh [--cpp-only] PRESET [ctest arguments ...]
set -euo pipefail
cd "$(dirname "$0")/.."

cpp_only=0
if [[ ${1:-} == --cpp-only ]]; then
  cpp_only=1
  shift
fi
if [[ -z ${1:-} || $1 == -* ]]; then
  echo "usage: scripts/run_tests.sh [--cpp-only] PRESET [ctest arguments ...]" >&2
  exit 2
fi
preset=$1
shift
build=build/$preset
if [[ ! -d $build ]]; then
  echo "run_tests.sh: $build is not there: cmake --preset $preset && cmake --build $build" >&2
  exit 2
fi
results=$build/test-results
rm -rf "$results"
mkdir -p "$results"

failed=0
echo "== C++ tests (ctest, preset $preset)"
ctest --preset "$preset" --output-junit "$PWD/$results/ctest-junit" "$@" || failed=1

if ((!cpp_only)) && [[ -d tests/python ]]; then
  echo "== Python tests (pytest)"
  # Passive: threads of torch that wait for each other would take the cores from the tests beside them.
  OMP_WAIT_POLICY=passive PYTHONPATH=bindings/python CADRE_LIBRARY=$PWD/$build/libcadre.so \
    .venv/bin/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal --junit-xml="$results/pytest.xml" tests/python || failed=1
fi

# Skipped cases are named once: here, or in CI at the very end.
python3 scripts/test_summary.py ${CI:+--count} "$results" || failed=1
exit $failed
