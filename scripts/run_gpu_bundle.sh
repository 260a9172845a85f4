#!/usr/bin/env bash
# Runs the GPU tests and benchmarks of this folder, writes JSON results, and ends with one count of all test cases.
# usage: ./run.sh [--out FOLDER] [tests] [bench] [ptx-jit] [sanitize [TOOL...]]      (default: tests ptx-jit bench)
#   tests     all GPU tests, in several processes      ptx-jit   a part of them with the driver compiling the PTX
#   bench     every kernel against dense cuBLAS        sanitize  a part of them under compute-sanitizer's four tools
# CADRE_CUBLAS=path/to/libcublas.so names a cuBLAS that the loader doesn't find by itself.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/results
steps=() tools=()
while (($#)); do
  case $1 in
    --out) out=$2 && shift ;;
    tests | bench | ptx-jit | sanitize) steps+=("$1") ;;
    memcheck | racecheck | initcheck | synccheck) tools+=("$1") ;;
    *) echo "run.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
((${#steps[@]})) || steps=(tests ptx-jit bench)
((${#tools[@]})) || tools=(memcheck racecheck initcheck synccheck)
mkdir -p "$out"

# Small calls of every op and kernel; minutes under a sanitizer, not hours. The driver can compile the portable kernels
# alone from PTX, so there the Hopper kernels ("cuda") are left out.
portable='All/TileBits.*/part_of_16_bytes:All/TileBits.*/no_alignment:All/TileBits.*/less_than_a_block'
hopper=''
for case in GraphTest.* DeviceFaults.* BackendTest.ThreadsAndStreamsShareAContext BackendTest.WorkspaceIsNeverOverrun; do
  portable+=":All/$case/cuda_sm80"
  hopper+=":All/$case/cuda"
done
for case in GmmContract.TransposedWeights GmmContract.TailRowsAreZeroOrUntouched GmmContract.AnyStrides GmmContract.PointerLists \
  TgmmContract.AnyStrides TgmmContract.EmptyGroupsGiveBetaC GroupedGemmContract.EveryFormOfTensor BiasGradContract.AnyStrides; do
  for type in bf16_bf16_bf16 f16_f16_f32 f32_f32_f32 f64_f64_f64 i8_i8_i32 bf16_f32_f32; do
    portable+=":All/$case/cuda_sm80_$type"
  done
  for type in bf16_bf16_bf16 f16_f16_f32; do
    hopper+=":All/$case/cuda_$type"
  done
done

passed=0 failed=0 skipped=0
count() { # count LOG EXIT_STATUS...: adds the cases of a test program's log; a program that died counts as one failure
  local log=$1
  shift
  passed=$((passed + $(grep -c '^\[       OK \]' "$log")))
  failed=$((failed + $(grep -c '^\[  FAILED  \].*ms)$' "$log")))
  skipped=$((skipped + $(grep -c '^\[  SKIPPED \].*ms)$' "$log")))
  grep '^\[  FAILED  \].*ms)$' "$log"
  for status in "$@"; do
    if ((status > 1)); then
      echo "${log##*/}: a test program ended with status $status" && failed=$((failed + 1))
    fi
  done
}

# The expected results are computed on the host, so that several processes share the GPU well.
run_tests() {
  local cores shards pids=() statuses=()
  cores=$(nproc)
  shards=$((cores > 12 ? 12 : cores))
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$here/gpu_tests" --gtest_output="json:$out/gpu_tests.$i.json" \
      >"$out/gpu_tests.$i.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid"
    statuses+=($?)
  done
  cat "$out"/gpu_tests.*.log >"$out/gpu_tests.log"
  rm -f "$out"/gpu_tests.*.log
  count "$out/gpu_tests.log" "${statuses[@]}"
}

run_ptx_jit() {
  CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 "$here/gpu_tests" --gtest_filter="$portable" \
    --gtest_output="json:$out/ptx_jit.json" >"$out/ptx_jit.log" 2>&1
  count "$out/ptx_jit.log" $?
}

run_sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "sanitize: skipped, no compute-sanitizer here"
    skipped=$((skipped + ${#tools[@]}))
    return
  fi
  for tool in "${tools[@]}"; do
    local start=$SECONDS
    CADRE_TEST_NO_CACHE=1 timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 99 "$here/gpu_tests" \
      --gtest_filter="$portable$hopper" >"$out/sanitize_$tool.log" 2>&1
    local status=$?
    count "$out/sanitize_$tool.log" "$status"
    echo "$tool: status $status, $((SECONDS - start)) s, $(grep -E '(ERROR|RACECHECK) SUMMARY' "$out/sanitize_$tool.log" | tail -1)"
  done
}

run_bench() {
  "$here/cadre" bench --device cuda --json "$out/bench.json" 2>&1 | tee "$out/bench.log"
  case ${PIPESTATUS[0]} in
    0) ;;
    4) echo "bench: skipped, no GPU here" && skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
}

for step in "${steps[@]}"; do
  case $step in
    tests) run_tests ;;
    ptx-jit) run_ptx_jit ;;
    sanitize) run_sanitize ;;
    bench) run_bench ;;
  esac
done
printf '{"passed": %d, "failed": %d, "skipped": %d}\n' "$passed" "$failed" "$skipped" >"$out/summary.json"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
