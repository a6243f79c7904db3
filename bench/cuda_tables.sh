#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All tables of one GPU machine in one go: `bash bench/cuda_tables.sh EP_BENCH FOLDER`. EP_BENCH is built with
# -DMORI_EP_GPU=cuda -DCMAKE_BUILD_TYPE=Release. Writes <date>-cuda-intranode.txt and the JSON of each run to FOLDER.
# TOKENS, ITERATIONS and DEVICES may be set. About a minute. Fails when a check does.
set -euo pipefail
if (($# != 2)); then
  sed -n '3,5s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
bench=$1 folder=$2
tokens=${TOKENS-0,16,128,1024,4096} iterations=${ITERATIONS-500} devices=${DEVICES-1}
table=$folder/$(date +%F)-cuda-intranode.txt
mkdir -p "$folder"
written=$(mktemp)
trap 'rm -f "$written"' EXIT

# measure NAME OPTIONS...
measure() {
  local name=$1
  shift
  local options=(run --exec cuda --world 8 --devices "$devices" --tokens "$tokens" --iterations "$iterations" "$@")
  printf '# ep_bench %s\n' "${options[*]}" >>"$written"
  "$bench" "${options[@]}" --save "$folder/cuda-$name.json" >>"$written"
  echo >>"$written"
}

measure graph --graph
measure graph-warm --graph --l2 warm
measure eager
measure eager-external --external
cp "$written" "$table"
cat "$table"
