#!/usr/bin/env bash
# Tests a front with another version of its framework than the one its shim is compiled for: the shim is made with the
# headers in .venv, then this same file is loaded and tested in an environment of its own (with jax also inside tokamax and,
# from 0.11 on, MaxText).
# usage: scripts/test_framework_version.sh torch|jax VERSION [pytest arguments ...]     (after make test)
set -euo pipefail

if (($# < 2)); then
  sed -n 's/^# usage/usage/p' "$0" >&2
  exit 2
fi
framework=$1 version=$2
shift 2
cd "$(dirname "$0")/.."
library=build/release/libcadre.so
[[ -f $library && -x .venv/bin/python ]] || { echo "run make test first" >&2 && exit 1; }

folder=build/framework-versions
package=$folder/$framework
rm -rf "$package"
mkdir -p "$package"
cp -r bindings/python/cadre "$package/cadre"
mkdir -p "$package/cadre/lib"
if [[ $framework == torch ]]; then
  find_shim='import cadre.torch._shim as s; print(s.path)'
else
  find_shim='import cadre._shims as f, cadre.jax._handlers as s, contextlib as c; print(c.ExitStack().enter_context(f.found(s.shim())))'
fi
shim=$(PYTHONPATH=bindings/python CADRE_LIBRARY=$PWD/$library .venv/bin/python -c "$find_shim")
cp -L "$library" "$shim" "$package/cadre/lib/"

venv=$folder/venv-$framework-$version
if [[ ! $venv/complete -nt requirements/test.txt || ! $venv/complete -nt requirements/tokamax.txt ||
      ! $venv/complete -nt requirements/maxtext.txt ]]; then
  oldest_python=3.10
  requirements=("$framework==$version" -r requirements/test.txt)
  if [[ $framework == jax ]]; then
    requirements+=("jaxlib==$version" flatbuffers -r requirements/tokamax.txt)
    if [[ $version != 0.10.* ]]; then
      oldest_python=3.12
      requirements+=(-r requirements/maxtext.txt)
    fi
  fi
  python=$(scripts/find_python.sh $oldest_python) || {
    echo "$framework $version needs Python $oldest_python or newer, and there is none" >&2
    exit 1
  }
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${requirements[@]}"
  touch "$venv/complete"
fi
echo "$(basename "$shim") made with $(basename "$(dirname "$shim")"), tested with $framework $version:"
env -u CADRE_LIBRARY PYTHONPATH="$package" "$venv/bin/python" -m pytest -q -n auto --maxprocesses 4 --dist worksteal \
  --junit-xml="$folder/test-results/$framework-$version.xml" "tests/python/${framework}_front" "$@"
