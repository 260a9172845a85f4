#!/usr/bin/env bash
# Installs the Debian packages that a make target needs, and only those that are missing.
# usage: scripts/setup_apt.sh GROUP...   with GROUP one of: build test lint tsan bench browser
# Without root and sudo it prints the command to run and stops.
set -euo pipefail

# A package counts as present when dpkg has it, or when the command behind the colon is found (a CMake from pip will do).
declare -A groups=(
  [build]="g++:g++ cmake:cmake ninja-build:ninja ccache:ccache libfmt-dev libcli11-dev nlohmann-json3-dev"
  [test]="libgtest-dev libgmock-dev libdnnl-dev pkg-config:pkg-config binutils:nm python3:python3"
  [lint]="clang-format:clang-format clang-tidy:clang-tidy python3:python3"
  [tsan]="clang:clang++ libclang-rt-dev"
  [bench]="libopenblas-dev libdnnl-dev"
  [browser]="chromium:chromium"
)

installed() {
  local package=${1%%:*} command=""
  [[ $1 == *:* ]] && command=${1#*:}
  if [[ -n $command ]] && command -v "$command" >/dev/null; then
    return 0
  fi
  [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == "install ok installed" ]]
}

wanted=()
for group in "$@"; do
  if [[ -z ${groups[$group]:-} ]]; then
    echo "setup_apt.sh: unknown group '$group', expected: ${!groups[*]}" >&2
    exit 2
  fi
  for entry in ${groups[$group]}; do
    wanted+=("$entry")
  done
done
# A virtual environment needs ensurepip, which Debian keeps in a package of its own.
for group in "$@"; do
  if [[ $group == test ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    wanted+=(python3-venv)
  fi
done

missing=()
for entry in "${wanted[@]}"; do
  package=${entry%%:*}
  if ! installed "$entry" && [[ " ${missing[*]:-} " != *" $package "* ]]; then
    missing+=("$package")
  fi
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

echo "Missing packages: ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "This is no Debian system: install the equivalents of these packages, then run make again." >&2
  exit 1
fi
if ((EUID == 0)); then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo)
elif command -v sudo >/dev/null && [[ -t 0 ]]; then
  echo "Installing needs root; sudo may ask for your password."
  as_root=(sudo)
else
  echo "Installing needs root. Run this as root, then make again:" >&2
  echo "  apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "Installing them with apt-get ..."
log=$(mktemp)
if ! { "${as_root[@]}" apt-get -qq update &&
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "apt-get failed (above)." >&2
  exit 1
fi
rm -f "$log"
