#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All that a GPU is wanted for, in one go and bounded: the device tests, compute-sanitizer, the tables of bench/cuda_tables.sh.
# `bash bench/cuda_session.sh TEST_PROGRAM EP_BENCH FOLDER`: mori_ep_cuda_test and ep_bench, built with -DMORI_EP_GPU=cuda
# -DCMAKE_BUILD_TYPE=Release. Output goes to FOLDER, a line for each step to stdout. LIMIT: seconds for one file's tests
# (60); SANITIZED: random configurations under each sanitizer (8, 0 for none); PROCESSES: those with ranks as processes
# (6); NETWORKED: those between nodes (30). Fails when a step does; 77 without a device.
set -uo pipefail
if (($# != 3)); then
  sed -n '3,7s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
tests=$1 bench=$2 folder=$3
limit=${LIMIT-60} sanitized=${SANITIZED-8} processes=${PROCESSES-6} networked=${NETWORKED-30} failed=0
mkdir -p "$folder"

# step NAME SECONDS COMMAND...
step() {
  local name=$1 seconds=$2 began=$SECONDS status=0
  shift 2
  timeout "$seconds" "$@" >"$folder/$name.txt" 2>&1 || status=$?
  local said="failed with $status"
  case $status in
    0) said=passed ;;
    77) said=skipped ;;
    124) said="not done in $seconds s" ;;
  esac
  printf '%-48s %s, %d s\n' "$name" "$said" $((SECONDS - began))
  ((status == 0 || status == 77)) && return
  failed=1
  tail -n 25 "$folder/$name.txt"
}

for program in "$tests" "$bench"; do
  [[ -x $program ]] && continue
  echo "$program is no program" >&2
  exit 2
done
# Catch2 v2 answers a list with its length.
status=0
listed=$("$tests" --list-tags --filenames-as-tags) || status=$?
stems=$(grep -o '\[#[a-z_]*\]' <<<"$listed" | tr -d '[]#' | sort -u)
if [[ ! $stems ]]; then
  printf '%s\n' "$listed" "$tests names no tests" >&2
  exit $((status == 77 ? 77 : 2))
fi
left_out='~[host_only]'
for stem in $stems; do
  step "$stem" "$limit" "$tests" --filenames-as-tags "[#$stem]$left_out"
done
for network in 1 2; do
  MORI_EP_TEST_NETWORK=$network MORI_EP_TEST_CASES=$networked step "network_$network" $((2 * limit)) "$tests" \
    --filenames-as-tags '[#ep_dispatch_combine_random_test],[#ep_dispatch_combine_routing_test]'
done
# Ranks as processes: each play starts the runtime in every one of them.
MORI_EP_TEST_PROCESSES=1 step processes_recovery $((2 * limit)) "$tests" --filenames-as-tags \
  '[#ep_dispatch_combine_recovery_test][processes]'
MORI_EP_TEST_PROCESSES=1 MORI_EP_TEST_CASES=$processes step processes_random $((2 * limit)) "$tests" --filenames-as-tags \
  '[#ep_dispatch_combine_random_test]'
if ((sanitized > 0)) && ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer is not on PATH: left out"
elif ((sanitized > 0)); then
  export MORI_EP_TEST_CASES=$sanitized
  for tool in memcheck racecheck initcheck; do
    # Why initcheck is given a world of one: test/gpu.cmake.
    [[ $tool == initcheck ]] && export MORI_EP_TEST_WORLD=1 MORI_EP_TEST_RAW_ARENAS=1
    step "$tool" $((4 * limit)) compute-sanitizer --tool "$tool" --error-exitcode 66 "$tests" --filenames-as-tags \
      '[#ep_dispatch_combine_random_test]'
  done
fi
step tables $((4 * limit)) bash "$(dirname "${BASH_SOURCE[0]}")/cuda_tables.sh" "$bench" "$folder"
exit $failed
