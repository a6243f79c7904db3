#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# README's commands, in their order and in one shell: each program is built by a command before it, and runs as written,
# only shorter. What installs, configures or builds is not run, nor what needs a GPU.
# Usage: readme_commands.sh README BUILD_FOLDER WITH_MPI
set -euo pipefail
readme=$1 build=$2 with_mpi=$3
unset OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM  # README must say them

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

built=' ' ran=0
while IFS= read -r line; do
  [[ $line == *'mpirun '* || $line == *OMPI_* ]] && [[ -z $with_mpi ]] && continue
  if [[ $line == *--build* ]]; then
    targets=${line##*--target}
    built+="${targets%%&&*} "
    continue
  fi
  programs=$(grep -o 'build/[a-z]*/[a-z_]*' <<<"${line%%#*}" | grep -v tables || true)
  for program in $programs; do
    [[ $built == *" ${program##*/} "* ]] || fail "README runs $program, which no command before it builds: $line"
  done
  [[ $line == export* ]] && eval "$line"
  [[ -n $programs && $line != *cuda* ]] || continue
  command=${line%%#*}
  command=${command//build\//$build/}
  [[ $command != *ep_bench* ]] || command="${command/--tokens 128,512,1024/--tokens 8} --iterations 2 --warmup 0"
  # Ranks that README starts in the background are waited for, too.
  (
    eval "$command" || exit 1
    for job in $(jobs -p); do wait "$job" || exit 1; done
  ) </dev/null >/dev/null || fail "README's command fails: $line"
  ran=$((ran + 1))
done < <(sed -n '/^```bash$/,/^```$/p' "$readme" | grep -v '^```')
((ran >= 4)) || fail "only $ran commands of README run programs"
echo "$ran commands of README run"
