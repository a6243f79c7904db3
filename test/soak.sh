#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Random configurations from seeds that nobody has tried, on one node, between nodes and with relays in turn, over a network
# that delays, reorders and refuses: `bash test/soak.sh MORI_EP_TEST [SECONDS]` (28800), or the target soak. For a night.
# Ends at the first failure and says with which seed it is played again.
set -uo pipefail
(($# == 1 || $# == 2)) || { sed -n '3,5s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
program=$1 seconds=${2-28800} rounds=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while ((SECONDS < seconds)); do
  for network in 0 1 2; do
    seed=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
    if ! MORI_EP_TEST_NETWORK=$network MORI_EP_TEST_SEED=$seed MORI_EP_TEST_CASES=300 "$program" --filenames-as-tags \
      '[#ep_dispatch_combine_random_test]' >"$log" 2>&1; then
      cat "$log"
      echo "soak: failed after $rounds rounds; MORI_EP_TEST_NETWORK=$network and the seed above play it again"
      exit 1
    fi
    rounds=$((rounds + $(sed -n 's/^\([0-9]*\) rounds$/\1/p' "$log")))
  done
  echo "soak: $rounds rounds in $SECONDS s, no finding"
done
