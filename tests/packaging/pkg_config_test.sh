#!/usr/bin/env bash
# Compiles and runs the consumer with the flags that pkg-config gives for an installed cadre.
# usage: pkg_config_test.sh PREFIX COMPILER VERSION
set -euo pipefail
prefix=$1 compiler=$2 version=$3
here=$(cd "$(dirname "$0")" && pwd)

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name cadre.pc)")
export PKG_CONFIG_PATH
found=$(pkg-config --modversion cadre)
if [[ $found != "$version" ]]; then
  echo "cadre.pc says version $found, expected $version" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra cflags <<<"$(pkg-config --cflags cadre)"
read -ra libs <<<"$(pkg-config --libs cadre)"
"$compiler" -std=c++20 "${cflags[@]}" "$here/consumer.cc" -o "$work/consumer" "${libs[@]}"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir cadre) "$work/consumer"
