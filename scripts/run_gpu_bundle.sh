#!/usr/bin/env bash
# Runs the GPU tests and benchmarks of this folder, writes JSON results, and ends with one count of all test cases.
# usage: ./run.sh [--out FOLDER] [tests] [bench] [ptx-jit] [sanitize [TOOL...]]      (default: tests ptx-jit bench)
#   tests     all GPU tests, in several processes      ptx-jit   a part of them with the driver compiling the PTX
#   bench     every kernel against dense cuBLAS        sanitize  a part of them under compute-sanitizer's four tools
# A sanitizer's tool runs for four minutes at most; what it hasn't finished by then has failed.
# CADRE_CUBLAS=path/to/libcublas.so names a cuBLAS that the loader doesn't find by itself.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/results
steps=() tools=()
tool_limit_s=240
while (($#)); do
  case $1 in
    --out)
      [[ -n ${2:-} && $2 != -* ]] || { echo "run.sh: --out needs a folder: run.sh --out FOLDER [tests] [bench] ..." >&2 && exit 2; }
      out=$2 && shift
      ;;
    tests | bench | ptx-jit | sanitize) steps+=("$1") ;;
    memcheck | racecheck | initcheck | synccheck) tools+=("$1") ;;
    -h | --help) sed -n '2,7s/^# //p' "$0" && exit ;;
    *) echo "run.sh: unknown argument $1; run.sh --help lists what there is" >&2 && exit 2 ;;
  esac
  shift
done
((${#steps[@]})) || steps=(tests ptx-jit bench)
((${#tools[@]})) || tools=(memcheck racecheck initcheck synccheck)
mkdir -p "$out"

# Small calls of every op and kernel; minutes under a sanitizer, not hours. The driver can compile the portable kernels
# alone from PTX, so there the Hopper kernels ("cuda") are left out.
portable='All/TileBits.*/part_of_16_bytes:All/TileBits.*/no_alignment:All/TileBits.*/less_than_a_block:All/EvenTile.*HasTheBitsOfTheOthers/160x256'
hopper=''
for case in GraphTest.* DeviceFaults.* RowFaults.* BackendTest.ThreadsAndStreamsShareAContext BackendTest.WorkspaceIsNeverOverrun; do
  portable+=":All/$case/cuda_sm80"
  hopper+=":All/$case/cuda"
done
for case in GmmContract.TransposedWeights GmmContract.TailRowsAreZeroOrUntouched GmmContract.AnyStrides GmmContract.PointerLists \
  TgmmContract.AnyStrides TgmmContract.EmptyGroupsGiveBetaC GroupedGemmContract.EveryFormOfTensor BiasGradContract.AnyStrides; do
  for type in bf16_bf16_bf16 f16_f16_f32 f32_f32_f32 f64_f64_f64 i8_i8_i32 bf16_f32_f32; do
    portable+=":All/$case/cuda_sm80_$type"
  done
done
for case in GmmReadsBroadcastOperands TgmmReadsBroadcastOperands GroupedGemmReadsBroadcastOperands; do
  portable+=":All/Strides0.$case/cuda_sm80_f32_f32_f32"
  hopper+=":All/Strides0.$case/cuda_bf16_bf16_bf16"
done
portable+=':All/RouteContract.*/cuda_sm80_*:All/PermuteContract.*/cuda_sm80_bf16_f32_bf16'
portable+=':All/CombineContract.*/cuda_sm80_bf16_f32_bf16:All/SelectExpertsContract.*/cuda_sm80_f32_f32_f32'
# Every Hopper kernel on two or three multiprocessors: a CTA takes several tiles and uses its rings and chunks again.
for case in GmmContract.{TransposedWeights,BiasAndScales}/sm90_192x256_bf16_bf16_bf16 \
  GmmContract.{TransposedWeights/sm90_192x128_f16_f16_f32,PointerLists/sm90_192x128_bf16_bf16_bf16} \
  GmmContract.{AlphaBetaAndC/sm90_192x128_c_f16_f16_f32,PointerLists/sm90_192x128_c_bf16_bf16_bf16} \
  GmmContract.{TransposedWeights,CIsNotReadWithoutBeta,AnyStrides}/sm90_256x128_bf16_bf16_bf16 \
  GmmContract.{TransposedWeights/sm90_64x128_bf16_bf16_bf16,AlphaBetaAndC/sm90_64x128_f16_f16_f32} \
  GmmContract.TailRowsAreZeroOrUntouched/sm90_ragged_bf16_bf16_bf16 \
  TgmmContract.{AnyStrides,AlphaBetaAndC}/sm90_ragged_bf16_bf16_bf16 \
  TgmmContract.{EmptyGroupsGiveBetaC,PointerLists}/sm90_ragged_f16_f16_f32 \
  HopperFaults.BadSizesInGmm/sm90_{192x256,192x128_c,256x128,64x128} HopperTgmmFaults.BadSizesInTgmm/sm90 \
  HopperGraph.GmmOfManyTilesReplays/sm90{,_64x128} HopperTgmmGraph.TgmmOfManyTilesReplays/sm90; do
  hopper+=":All/$case"
done

passed=0 failed=0 skipped=0
cases_of() { "$here/gpu_tests" --gtest_filter="$1" --gtest_list_tests | grep -c '^  '; } # cases_of FILTER: how many there are

# count LOG CASES EXIT_STATUS...: adds the cases of a log. Cases that never reported their end have failed, and a program
# that died, or in which a sanitizer found something, is a failure even when all of its cases passed.
count() {
  local log=$1 missing=$2 died=0 ok bad left_out status
  shift 2
  ok=$(grep -c '^\[       OK \]' "$log")
  bad=$(grep -c '^\[  FAILED  \].*ms)$' "$log")
  left_out=$(grep -c '^\[  SKIPPED \].*ms)$' "$log")
  missing=$((missing - ok - bad - left_out))
  grep '^\[  FAILED  \].*ms)$' "$log"
  for status in "$@"; do
    if ((status > 1)); then
      echo "${log##*/}: a test program ended with status $status" && died=$((died + 1))
    fi
  done
  ((missing == 0)) || echo "${log##*/}: $missing cases never reported their end"
  passed=$((passed + ok))
  failed=$((failed + bad + (missing > died ? missing : died)))
  skipped=$((skipped + left_out))
}

# run_shards NAME SHARDS AT_ONCE FILTER COMMAND...: the tests of FILTER in so many processes of COMMAND, some of them at the
# same time, and their count; what they say goes to NAME.log, and while they run to one log each. Names the cases that
# had begun and never ended, and the slowest ones.
run_shards() {
  local name=$1 shards=$2 at_once=$3 filter=$4 statuses=() i
  shift 4
  rm -f "$out/$name".*.log "$out/$name".*.status
  for ((i = 0; i < shards; ++i)); do
    while (($(jobs -rp | wc -l) >= at_once)); do wait -n; done
    {
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$@" "$here/gpu_tests" --gtest_filter="$filter" \
        --gtest_output="json:$out/$name.$i.json" >"$out/$name.$i.log" 2>&1
      echo $? >"$out/$name.$i.status"
    } &
  done
  wait
  mapfile -t statuses < <(cat "$out/$name".*.status)
  # A program that was stopped at its limit may leave the tests it ran behind.
  [[ " ${statuses[*]} " != *' 124 '* && " ${statuses[*]} " != *' 137 '* ]] || pkill -KILL -f "json:$out/$name\.[0-9]+\.json"
  cat "$out/$name".*.log >"$out/$name.log"
  rm -f "$out/$name".*.log "$out/$name".*.status
  awk '/^\[ RUN      \] / { begun[$4] = 1 }
    /^\[ +(OK|FAILED|SKIPPED) +\] / { sub(/,$/, "", $4); delete begun[$4] }
    END { for (name in begun) print "began and never ended: " name }' "$out/$name.log"
  ((shards <= at_once)) || echo "$name, slowest: $(sed -nE 's/^\[       OK \] (.*) \(([0-9]+) ms\)$/\2 ms \1/p' "$out/$name.log" |
    sort -rn | head -3 | paste -sd ';')"
  count "$out/$name.log" "$(cases_of "$filter")" "${statuses[@]}"
}

at_most() { echo $(($1 < $2 ? $1 : $2)); }

# The expected results are computed on the host, so that several processes share the GPU well. The Multi-Process Service lets
# their kernels run side by side; without it every copy waits for the process's slice of time.
run_tests() {
  local at_once service=
  at_once=$(at_most 16 "$(nproc)")
  if command -v nvidia-cuda-mps-control >/dev/null && service=$(mktemp -d); then
    export CUDA_MPS_PIPE_DIRECTORY=$service CUDA_MPS_LOG_DIRECTORY=$service
    nvidia-cuda-mps-control -d || { unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY && rm -r "$service" && service=; }
  fi
  run_shards gpu_tests $((3 * at_once)) "$at_once" '*' env
  if [[ -n $service ]]; then
    echo quit | nvidia-cuda-mps-control
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    rm -r "$service"
  fi
}

run_ptx_jit() { run_shards ptx_jit 1 1 "$portable" env CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1; }

# What is left of a tool's time, for all of its processes together.
within_limit() { timeout -k 2 "$(($1 > SECONDS ? $1 - SECONDS : 1))" "${@:2}"; }

# racecheck is the slowest tool: on an H200 with 16 cores 114 cases take 102 s, the slowest of them 72 s. Cases differ by a
# factor of ten and more: three times as many short processes as run at once keep all of them busy to the end.
run_sanitize() {
  local tool start at_once
  if ! command -v compute-sanitizer >/dev/null; then
    echo "sanitize: skipped, no compute-sanitizer here"
    skipped=$((skipped + ${#tools[@]}))
    return
  fi
  at_once=$(at_most 14 "$(nproc)")
  for tool in "${tools[@]}"; do
    start=$SECONDS
    run_shards "sanitize_$tool" $((3 * at_once)) "$at_once" "$portable$hopper" within_limit $((SECONDS + tool_limit_s)) \
      env CADRE_TEST_NO_CACHE=1 compute-sanitizer --tool "$tool" --error-exitcode 99
    echo "$tool: $((SECONDS - start)) s in $((3 * at_once)) processes, found:" \
      "$(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$out/sanitize_$tool.log" | sort | uniq -c | tr -s ' \n' ' ')"
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
