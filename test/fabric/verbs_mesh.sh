#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What test/support/rdma_vm.sh runs on each of its machines: verbs_mesh with several worlds, packets and accidents.
# Usage: verbs_mesh.sh VERBS_MESH [MORI_EP_TEST]
set -uo pipefail
mesh_program=$1 test_program=${2-}
failed=0

# run PROGRAM OPTIONS...: and a line with what it came to.
run() {
  local begin=$SECONDS
  "$@"
  local code=$?
  echo "== $((SECONDS - begin)) s, exit $code: ${*##*/}"
  ((code == 0)) || failed=1
}

if ((NODES == 1)); then
  export MORI_EP_TEST_RDMA=1  # there is a device: nothing is skipped
  if [[ -n $test_program ]]; then run "$test_program" --filenames-as-tags '[#verbs_test][device],[#verbs_proxy_test][device],[#inter_node_test][device]'; fi
  run "$mesh_program" --processes 1 --rounds 200 --queue-pairs 1
  run "$mesh_program" --processes 2 --mtu 4096 --stream 8
  run "$mesh_program" --processes 4 --mtu 4096 --queue-pairs 4 --seed 2
  run "$mesh_program" --processes 2 --rounds 200 --large 17000000
  run "$mesh_program" --processes 3 --kill 1
  ip link set eth0 mtu 1500
  run "$mesh_program" --processes 2 --mtu 1024 --seed 3 --depth 2
  exit $failed
fi

# Ranks of a node have consecutive numbers. Each world meets at a port of its own.
port=29400
world() {
  local each=$1
  shift
  run "$mesh_program" --processes "$each" --first $((NODE * each)) --world $((NODES * each)) --at "$ADDRESS:$((port++))" "$@"
}
world 1 --mtu 4096 --stream 4
world 2 --mtu 4096 --queue-pairs 2
world 1 --rounds 200 --large 17000000
world 2 --kill 3
if ((NODE == 1)); then ip link set eth0 mtu 1500; fi  # the smaller of both ends counts
world 1 --mtu 1024 --seed 4
exit $failed
