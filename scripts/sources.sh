#!/usr/bin/env bash
# Sourced by format.sh: the C++ and CUDA files that are ours.
cadre_sources() {
  git ls-files --cached --others --exclude-standard -- \
    'include/*.h' 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh' 'src/*.inc' 'cli/*.h' 'cli/*.cc' \
    'tests/*.h' 'tests/*.c' 'tests/*.cc' 'tests/*.cu' 'bench/*.h' 'bench/*.cc' 'bench/*.cu' \
    'examples/*.c' 'examples/*.cc' 'bindings/*.h' 'bindings/*.cc'
}
