#!/usr/bin/env bash
# Checks that a build with CUDA loads and runs its CPU part where there is no driver or no GPU: the command line tool, and
# libcadre.so through the NumPy front (in .venv, where make test has made one). Takes seconds.
# usage: scripts/check_cuda_build.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/check_cuda_build.sh BUILD_FOLDER}
export CUDA_VISIBLE_DEVICES= # no GPU, also where there is one

info=$("$build/cadre" info)
grep -q 'CUDA  *in this build; no device here' <<<"$info" || { echo "cadre info: $info" >&2 && exit 1; }
"$build/cadre" demo --size tiny
"$build/cadre" verify --cases 200
status=0
refusal=$("$build/cadre" bench --device cuda 2>&1) || status=$?
if ((status != 4)) || [[ $refusal != *"no GPU here"* ]]; then
  echo "cadre bench --device cuda ended in $status, expected 4: $refusal" >&2
  exit 1
fi
if [[ -x .venv/bin/python ]]; then
  PYTHONPATH=bindings/python CADRE_LIBRARY=$PWD/$build/libcadre.so .venv/bin/python -m pytest -q tests/python/test_numpy.py
else
  echo "no .venv here: libcadre.so is not tried from Python"
fi
