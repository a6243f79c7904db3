#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# When one of ep_bench's processes is killed or stopped, the others end soon, say which it was, and leave nothing behind.
# Usage: ended_processes.sh EP_BENCH SCRATCH_FOLDER
set -euo pipefail
ep_bench=$1
scratch=$(mktemp -d "$2/ended.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
work=(--tokens 8 --hidden 64 --experts 24 --iterations 2000000)  # minutes
export MORI_BOOTSTRAP_TIMEOUT=60
short=4  # seconds that a rank may be silent, where that is tried

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
  ended_within 4 "$parent" || fail "--spawn still runs, 4 s after rank $rank was killed"
  code=0
  wait "$parent" || code=$?
  ((code == 1)) || fail "--spawn: exit code $code after rank $rank was killed"
  grep -q "rank $rank was ended by signal 9" "$scratch/err" || fail "--spawn does not say which rank was killed"
  for child in "${children[@]}"; do [[ ! -e /proc/$child ]] || fail "--spawn left process $child"; done
done
echo "--spawn: ends with a rank"

for rank in 0 2; do
  MORI_BOOTSTRAP_TIMEOUT=$short spawn
  sleep 1
  kill -STOP "${children[rank]}"
  sleep $((short - 2))
  kill -CONT "${children[rank]}"
  sleep 2
  alive "$parent" || fail "--spawn has ended, though rank $rank went on in time"
  kill -STOP "${children[rank]}"
  ended_within $((short + 4)) "$parent" || fail "--spawn still runs, $((short + 4)) s after rank $rank was stopped"
  code=0
  wait "$parent" || code=$?
  ((code == 1)) || fail "--spawn: exit code $code after rank $rank was stopped"
  grep -q "rank $rank: process ${children[rank]} has given no sign of life for [3-8][.]" "$scratch/err" ||
    fail "--spawn does not say that rank $rank stood still"
  for child in "${children[@]}"; do [[ ! -e /proc/$child ]] || fail "--spawn left process $child"; done
done
echo "--spawn: ends when a rank is stopped for too long"

MORI_BOOTSTRAP_TIMEOUT=$short spawn
kill -STOP "${children[@]}"
sleep $((short + 2))
kill -CONT "${children[@]}"
sleep 2
alive "$parent" || fail "--spawn has ended, though all its ranks were stopped and continued together"
kill -TERM "$parent"
wait "$parent" 2>/dev/null || true
echo "--spawn: goes on when all ranks were stopped"

for signal in TERM KILL; do
  spawn
  kill -$signal "$parent"
  ended_within 30 "$parent" "${children[@]}" || fail "ranks outlive their parent, which SIG$signal ended"
  wait "$parent" 2>/dev/null && fail "exit code 0 after SIG$signal"
done
echo "--spawn: ranks end with their parent"

for signal in KILL STOP; do
  ranks=()
  for rank in 0 1 2; do
    MORI_BOOTSTRAP_TIMEOUT=$((2 * short)) "$ep_bench" run "${work[@]}" --rank $rank --world 3 --id "file:$scratch/meet" \
      >/dev/null 2>"$scratch/err$rank" &
    ranks+=($!)
  done
  sleep 4
  kill -$signal "${ranks[1]}"
  ended_within $((2 * short + 4)) "${ranks[0]}" "${ranks[2]}" || fail "--rank: others still run after SIG$signal of rank 1"
  for rank in 0 2; do
    code=0
    wait "${ranks[rank]}" || code=$?
    ((code == 1)) || fail "--rank: rank $rank has exit code $code after SIG$signal of rank 1"
    grep -q "rank $rank: .*rank 1" "$scratch/err$rank" || fail "--rank: rank $rank does not name rank 1 after SIG$signal"
  done
  kill -CONT "${ranks[1]}" 2>/dev/null || true
  ended_within 4 "${ranks[1]}" || fail "--rank: rank 1 still runs, 4 s after SIGCONT"
  wait "${ranks[1]}" && fail "--rank: rank 1 has exit code 0 after SIG$signal"
done
echo "--rank: the others end"
