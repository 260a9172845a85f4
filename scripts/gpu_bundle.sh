#!/usr/bin/env bash
# Builds one folder with the GPU tests and benchmarks, to be copied to a machine that has a GPU and nothing but the driver.
# No GPU is needed here. usage: scripts/gpu_bundle.sh [--jitter] [FOLDER]   (default build/gpu-bundle/bundle)
#   --jitter  the tests alone, with Hopper kernels whose warps come late to their barriers at random (build/gpu-jitter)
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/gpu-bundle
jitter=OFF
if [[ ${1:-} == --jitter ]]; then
  build=build/gpu-jitter jitter=ON
  shift
fi
folder=${1:-$build/bundle}
limit_kib=$((106 * 1024)) # two programs of 50 MiB, most of it kernels; a growth of a tenth is seen
targets=(gpu_tests cadre_cli trace_range_test)
programs=(tests/gpu/gpu_tests cadre)
if [[ $jitter == ON ]]; then
  targets=(gpu_tests) programs=(tests/gpu/gpu_tests)
fi

command -v nvcc >/dev/null || { echo "gpu_bundle.sh: no nvcc on this machine" >&2; exit 1; }
# Everything but libc and the driver is linked statically; cuBLAS is opened at run time.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCADRE_CUDA=ON -DCADRE_CUDA_JITTER=$jitter \
  -DCADRE_EXAMPLES=OFF -DCADRE_INSTALL=OFF \
  "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" \
  ${CI:+-DCADRE_WERROR=ON} >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${targets[@]}"
if [[ $jitter == OFF ]]; then
  "$build/tests/gpu/trace_range_test" --gtest_brief=1 # needs no GPU, and nothing else runs it
fi

rm -rf "$folder"
mkdir -p "$folder"
for program in "${programs[@]}"; do
  strip -o "$folder/${program##*/}" "$build/$program"
done
cp scripts/run_gpu_bundle.sh "$folder/run.sh"

size_kib=$(du -sk "$folder" | cut -f1)
if ((size_kib > limit_kib)); then
  echo "gpu_bundle.sh: $folder takes $size_kib KiB, allowed are $limit_kib" >&2
  exit 1
fi
echo "$folder: $size_kib KiB; copy it to a machine with a GPU and run ./run.sh there"
