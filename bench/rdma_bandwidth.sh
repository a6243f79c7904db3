#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What InterNodeV1 puts on a wire a second, against ib_write_bw of the same run: one queue pair, messages of about the same
# size (a chunk is as many records as 256 KiB hold), both directions at once. On a machine with an RDMA device:
#   bash bench/rdma_bandwidth.sh EP_BENCH [TOKENS]
# With an emulated one: bash test/support/rdma_vm.sh --seconds 900 -- bash bench/rdma_bandwidth.sh EP_BENCH
# Two ranks, a node each, on one device. DEVICE (rxe0), ROUNDS (3): of one and the other, in turn. Debian: apt-get install
# perftest.
set -uo pipefail
(($# == 1 || $# == 2)) || { sed -n '3,8s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
program=$1 tokens=${2-1024} device=${DEVICE-rxe0} rounds=${ROUNDS-3}
bytes=262144
command -v ib_write_bw >/dev/null || { echo "no ib_write_bw: apt-get install perftest" >&2 && exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

write_bw() {
  local options=(-d "$device" -s "$bytes" -n 400 -q 1 -b -F -u 18)
  ib_write_bw "${options[@]}" >"$folder/server" 2>&1 &
  local server=$!
  sleep 2
  ib_write_bw "${options[@]}" 127.0.0.1 >"$folder/client" 2>&1
  local code=$?
  ((code == 0)) || kill "$server"
  wait "$server"
  # Columns: bytes, iterations, peak, average (MiB/s).
  awk -v bytes="$bytes" '$1 == bytes { printf "%.4f\n", $4 * 1.048576 / 1000 }' "$folder/client"
  ((code == 0)) || { cat "$folder/client" >&2 && return 1; }
}
v1() {
  MORI_RDMA_DEVICES=$device "$program" run --spawn 2 --schedule v1 --nodes 2 --transport verbs --tokens "$tokens" \
    --hidden 7168 --experts 8 --topk 4 --iterations 10 --warmup 2 --blocks 1 --warps 1 --format json >"$folder/v1" ||
    return 1
  sed -n 's/.*"wire_gbps": \([0-9.e-]*\).*/\1/p' "$folder/v1" | head -n 1
}
median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

echo "# $(uname -srm), device $device, messages of $bytes bytes, one queue pair, both directions; $tokens tokens a rank"
for ((i = 0; i < rounds; ++i)); do
  theirs=$(write_bw) && ours=$(v1) || exit 1
  echo "round $i: ib_write_bw $theirs GB/s, V1 dispatch $ours GB/s"
  echo "$theirs" >>"$folder/theirs"
  echo "$ours" >>"$folder/ours"
done
awk -v a="$(median <"$folder/ours")" -v b="$(median <"$folder/theirs")" \
  'BEGIN { printf "medians: ib_write_bw %.4f GB/s, V1 dispatch %.4f GB/s, ratio %.3f\n", b, a, a / b }'
