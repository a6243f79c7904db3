#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All tables of one GPU machine in one go: `bash bench/cuda_tables.sh EP_BENCH FOLDER`. EP_BENCH is built with
# -DMORI_EP_GPU=cuda -DCMAKE_BUILD_TYPE=Release. Writes <date>-cuda-intranode.txt, and in it two nodes of eight ranks on the
# one device, too, and the JSON of each run to FOLDER; with DEVICES=2 and more <date>-cuda-<N>-devices.txt: a rank on each
# device, then eight ranks on all, then NCCL's all-to-all with packing, where there is a python3 with torch. TOKENS,
# NODES_TOKENS (of the two nodes) and ITERATIONS may be set, too. A minute or two. Fails when a check does.
set -euo pipefail
if (($# != 2)); then
  sed -n '3,7s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
bench=$1 folder=$2
iterations=${ITERATIONS-500} devices=${DEVICES-1}
mkdir -p "$folder"
written=$(mktemp)
trap 'rm -f "$written"' EXIT

# measure NAME WORLD OPTIONS...
measure() {
  local name=$1 world=$2
  shift 2
  local options=(run --exec cuda --world "$world" --devices "$devices" --tokens "$tokens" --iterations "$iterations" "$@")
  printf '# ep_bench %s\n' "${options[*]}" >>"$written"
  "$bench" "${options[@]}" --save "$folder/cuda-$name.json" >>"$written"
  echo >>"$written"
}
nccl() {
  local options=(--world "$devices" --tokens "$tokens" --iterations 100 "$@")
  printf '# bench/nccl_alltoall.py %s\n' "${options[*]}" >>"$written"
  python3 "$(dirname "${BASH_SOURCE[0]}")/nccl_alltoall.py" "${options[@]}" >>"$written"
  echo >>"$written"
}

if ((devices == 1)); then
  table=$folder/$(date +%F)-cuda-intranode.txt tokens=${TOKENS-0,16,128,1024,4096}
  measure graph 8 --graph
  measure graph-warm 8 --graph --l2 warm
  measure eager 8
  measure eager-external 8 --external
  cp "$written" "$table"  # whatever becomes of what follows
  tokens=${NODES_TOKENS-128,1024,4096}
  measure v1 16 --schedule v1 --nodes 2 --warps 16
else
  table=$folder/$(date +%F)-cuda-$devices-devices.txt tokens=${TOKENS-1,16,128,1024,4096}
  measure "$devices-graph" "$devices" --graph
  measure "$devices-eager" "$devices"
  ((devices == 8)) || measure 8-graph 8 --graph
  cp "$written" "$table"  # whatever becomes of what follows
  if python3 -c 'import sys, torch; sys.exit(torch.cuda.device_count() < int(sys.argv[1]))' "$devices" 2>/dev/null; then
    nccl --graph
    nccl
  fi
fi
cp "$written" "$table"
cat "$table"
