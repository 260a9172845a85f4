#!/usr/bin/env bash
# Configures and builds a project that uses cadre, and runs its program. (ctest --build-and-test would do it, too, but it
# sets LC_ALL to nothing, which ccache tells from unset: it would compile the whole library again.)
# usage: consumer_test.sh SOURCE_DIR BUILD_DIR [CMAKE_OPTION...]
set -euo pipefail
source_dir=$1 build=$2
shift 2
cmake --fresh -S "$source_dir" -B "$build" -G Ninja "$@"
cmake --build "$build" --clean-first
"$build/consumer"
