#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# When one of ep_bench's processes is killed, the others end soon, say which it was, and leave nothing behind.
# Usage: ended_processes.sh EP_BENCH SCRATCH_FOLDER
set -euo pipefail
ep_bench=$1
scratch=$(mktemp -d "$2/ended.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
work=(--tokens 8 --hidden 64 --experts 24 --iterations 2000000)  # minutes

fail() {
  printf '%s\n' "$*" >&2
  cat "$scratch"/err* >&2
  exit 1
}
children_of() { grep -l "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status 2>/dev/null | cut -d/ -f3 | sort -n || true; }
# Runs and is no zombie: that is for whoever adopted it to wait for.
alive() { [[ -r /proc/$1/status ]] && ! grep -q '^State:[[:space:]]*[ZX]' "/proc/$1/status" 2>/dev/null; }
# ended_within SECONDS PID...: all have ended by then.
ended_within() {
  local deadline=$((SECONDS + $1)) pid
  shift
  for pid in "$@"; do
    while alive "$pid"; do
      ((SECONDS < deadline)) || return 1
      sleep 0.1
    done
  done
}
# spawn: three ranks, under way. Sets parent and children (by rank).
spawn() {
  "$ep_bench" run "${work[@]}" --spawn 3 >/dev/null 2>"$scratch/err" &
  parent=$!
  local i
  children=()
  for ((i = 0; i < 200 && ${#children[@]} < 3; ++i)); do
    sleep 0.1
    mapfile -t children < <(children_of "$parent")
  done
  ((${#children[@]} == 3)) || fail "no three children"
}

for rank in 0 2; do
  spawn
  sleep 1
  kill -KILL "${children[rank]}"
  ended_within 60 "$parent" || fail "--spawn still runs, 60 s after rank $rank was killed"
  code=0
  wait "$parent" || code=$?
  ((code == 1)) || fail "--spawn: exit code $code after rank $rank was killed"
  grep -q "rank $rank was ended by signal 9" "$scratch/err" || fail "--spawn does not say which rank was killed"
  for child in "${children[@]}"; do [[ ! -e /proc/$child ]] || fail "--spawn left process $child"; done
done
echo "--spawn: ends with a rank"

for signal in TERM KILL; do
  spawn
  kill -$signal "$parent"
  ended_within 30 "$parent" "${children[@]}" || fail "ranks outlive their parent, which SIG$signal ended"
  wait "$parent" 2>/dev/null && fail "exit code 0 after SIG$signal"
done
echo "--spawn: ranks end with their parent"

ranks=()
for rank in 0 1 2; do
  "$ep_bench" run "${work[@]}" --rank $rank --world 3 --id "file:$scratch/meet" >/dev/null 2>"$scratch/err$rank" &
  ranks+=($!)
done
sleep 3
kill -KILL "${ranks[1]}"
ended_within 120 "${ranks[@]}" || fail "--rank: others still run, 120 s after rank 1 was killed"
for rank in 0 2; do
  code=0
  wait "${ranks[rank]}" || code=$?
  ((code == 1)) || fail "--rank: rank $rank has exit code $code after rank 1 was killed"
  grep -q "rank $rank: .*rank 1" "$scratch/err$rank" || fail "--rank: rank $rank does not say which was killed"
done
echo "--rank: the others end"
