#!/usr/bin/env bash
# Builds dist/cadre_gmm-VERSION-py3-none-TAG.whl, TAG the oldest glibc that it runs on (auditwheel reads it from the library).
# usage: scripts/wheel.sh [pip options ...]
# WHEEL_CUDA=ON|OFF: with the CUDA backend or without; without the variable, with it where nvcc is found (20 minutes more).
# libstdc++, libgcc_s and libc are the system's, the CUDA runtime is linked statically, nothing else is needed: so auditwheel
# bundles no library, it names the tag.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
cuda=${WHEEL_CUDA:-$(command -v nvcc >/dev/null && echo ON || echo OFF)}
case $cuda in
  ON | OFF) ;;
  *) echo "wheel.sh: WHEEL_CUDA = $cuda, expected ON or OFF" >&2 && exit 2 ;;
esac
if [[ $cuda == ON ]] && ! command -v nvcc >/dev/null; then
  echo "wheel.sh: WHEEL_CUDA=ON needs nvcc 13 on PATH; WHEEL_CUDA=OFF builds the CPU backend alone" >&2
  exit 1
fi

plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$plain" \
  -C "cmake.define.CADRE_CUDA=$cuda" "$@" .
mkdir -p dist
rm -f dist/cadre_gmm-*.whl
# --exclude: what is the user's own, the driver and torch.
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --plat auto --exclude 'libcuda.so.*' --exclude 'libtorch*' --exclude 'libc10*' \
  --wheel-dir dist "$plain"/*.whl >"$plain/log" 2>&1 || { cat "$plain/log" >&2 && exit 1; }
ls dist/cadre_gmm-*.whl
