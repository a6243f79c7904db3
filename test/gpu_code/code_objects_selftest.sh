#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# code_objects_selftest.sh LLVM ARCHS OBJECT: code_objects.sh must find everything that is planted in OBJECT.
set -uo pipefail

check=$(dirname "${BASH_SOURCE[0]}")/code_objects.sh
llvm=$1
archs=$2
object=$3
found=$(bash "$check" "$llvm" "$archs,gfx000" "$object")
code=$?
printf '%s\n' "$found"
failed=0
fail() {
  echo "selftest: $1"
  failed=1
}
broken=$(sed '1,/^What breaks the rules/d' <<<"$found")
if [[ $code == 0 ]]; then fail "nothing was rejected"; fi
if ! grep -q 'no code object for gfx000' <<<"$broken"; then fail "a missing architecture was not noticed"; fi
if grep -q ': good' <<<"$broken"; then fail "the good kernel was rejected"; fi

# wanted ARCH KERNEL TEXT
wanted() { if ! grep -qE ": $1: $2.*: .*$3" <<<"$broken"; then fail "$1: $2 was not rejected for: $3"; fi; }
for arch in ${archs//,/ }; do
  wanted "$arch" store_after_write_back 'no wait between a write-back and global_store'
  wanted "$arch" branch_after_write_back 'no wait between a write-back and s_cbranch'
  wanted "$arch" with_scratch 'scratch [1-9]'
  wanted "$arch" with_spills 'spilled SGPRs [1-9]'
  wanted "$arch" narrow_row 'not global and of four words'
  wanted "$arch" flat_row 'not global and of four words'
  wanted "$arch" DispatchKernel 'no row copy of four words'
  wanted "$arch" DispatchKernel 'no write-back'
done
# This compiler drops the wait. Where one does not, Target::wait_for_stores() of target_amd.hpp is no longer needed.
if [[ $("$llvm/clang" --version) == *"version 22."* ]]; then
  for arch in gfx90a gfx942; do wanted $arch plain_release 'no wait between a write-back'; done
fi
exit $failed
