#!/usr/bin/env bash
# The suites that are too slow for every change (.ci/run has the others): tests inside other frameworks, the fronts with
# other versions of their frameworks, the report in a browser, the site, the wheel on every Python, packaging extras, and
# every C++ test under ASan and UBSan. Over an hour.
# usage: scripts/test_all.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source scripts/steps.sh

# framework_version NAME VERSION OLDEST_PYTHON
framework_version() {
  if ! scripts/find_python.sh "$3" >/dev/null; then
    echo "$1 $2 needs Python $3 or newer: not tested here" >&2
    return 1
  fi
  scripts/test_framework_version.sh "$1" "$2"
}

step "tests inside other frameworks, slow ones too" env PYTEST_ADDOPTS=--slow make test FRONTS="torch jax tokamax transformers megatron torchtitan types"
step "torch 2.11.0" framework_version torch 2.11.0 3.10
step "jax 0.11.2" framework_version jax 0.11.2 3.12
step "browser" make test-browser
step "site" make site
step "wheel" env WHEEL_CUDA=OFF make wheel
step "wheel on every Python" make test-wheel
step "packaging" make test-packaging
step "packaging extras" ctest --preset release --label-regex extras --output-junit "$PWD/build/release/extras-results/ctest-junit"
step "sanitizers" make asan
report_steps
python3 scripts/test_summary.py build/release/test-results build/framework-versions/test-results \
  build/release/browser-results build/release/packaging-results build/release/extras-results build/asan/test-results || failed=1
exit $failed
