#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# code_objects.sh LLVM ARCHS OBJECT...: looks into the code objects that HIP object files carry, one for each of ARCHS (a
# list with commas), with the tools in the folder LLVM. Prints what each kernel takes, and fails unless
#   - every object has code for every architecture, and some kernel in it;
#   - no kernel has scratch memory, a stack or spilled registers;
#   - rows move in 16 bytes: every non-temporal access is a global one of four words, and every kernel that moves rows
#     has such a load and such a store;
#   - a wait for stores stands between each write-back and the next branch, store or atomic; a kernel that publishes rows
#     has a write-back;
#   - each of the instructions in EXPECTED, names with spaces between, occurs in every code object.
set -euo pipefail

llvm=$1
archs=${2//,/ }
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A line per kernel, from the notes of a code object: what it takes, in the order of the table's columns, and its name.
figures() {
  "$llvm/llvm-readelf" --notes "$1" | awk '
    function leave_kernel() {
      if ("name" in of)
        print of["wavefront_size"], of["vgpr_count"], of["agpr_count"] + 0, of["sgpr_count"],
              of["group_segment_fixed_size"], of["private_segment_fixed_size"], of["sgpr_spill_count"] + 0,
              of["vgpr_spill_count"] + 0, of["uses_dynamic_stack"] == "true", of["name"]
      delete of
    }
    /^  - / { leave_kernel() }
    /^  (- |  )\.[a-z_]+:/ { field = substr($0, 6); sub(/:.*/, "", field); of[field] = $NF }
    END { leave_kernel() }'
}

# Kernels as this library spells them: DispatchKernel<int, false>.
short_names() {
  "$llvm/llvm-cxxfilt" | sed -E 's/void ([a-z_]+::)*entry</</; s/<(.*)>\([^()]*\)/\1/; s/([a-z_0-9]+::|[A-Za-z]+::Ref, )//g
    s/CountedKernel<(.*)>/\1/'
}

# What of the code of a kernel breaks the rules.
broken_rules() {
  "$llvm/llvm-objdump" -d --no-show-raw-insn "$2" | awk -v arch="$1" '
    BEGIN {
      four_words = arch ~ /^gfx9/ ? "dwordx4" : "b128"
      non_temporal = arch == "gfx90a" ? " slc( |$)" : arch ~ /^gfx9/ ? " nt( |$)" : " th:TH_(LOAD|STORE)_NT"
      write_back = arch ~ /^gfx9/ ? "^buffer_wbl2" : "^global_wb( |$)"
      wait = arch ~ /^gfx9/ ? "^s_waitcnt .*vmcnt\\(0\\)" : "^s_wait_storecnt(_dscnt)? 0x0"
    }
    function leave_kernel() {
      if (kernel ~ /(Dispatch|Combine|Pack|Unpack)Kernel/ && !(moved["load"] && moved["store"]))
        print kernel ": no row copy of four words"
      if (kernel ~ /(Dispatch|Combine)Kernel/ && !write_backs) print kernel ": no write-back"
    }
    /^[0-9a-f]+ <.*>:$/ {
      leave_kernel()
      kernel = substr($2, 2, length($2) - 3)
      pending = write_backs = 0
      delete moved
      next
    }
    { sub(/ *\/\/.*/, ""); sub(/^[ \t]+/, "") }
    $0 ~ non_temporal {
      if ($1 ~ "^global_(load|store)_" four_words "$") ++moved[$1 ~ /load/ ? "load" : "store"]
      else print kernel ": a row access that is not global and of four words: " $0
    }
    $0 ~ wait { pending = 0 }
    pending && /^((global|flat|buffer)_(store|atomic)|s_(c?branch|endpgm|setpc|swappc))/ {
      print kernel ": no wait between a write-back and " $1
      pending = 0
    }
    $0 ~ write_back { pending = 1; ++write_backs }
    END { leave_kernel() }'
}

for object in "$@"; do
  name=$(basename "$object")
  "$llvm/llvm-objcopy" --dump-section .hip_fatbin="$scratch/bundle" "$object" "$scratch/unused.o"
  "$llvm/clang-offload-bundler" --list --type=o --input="$scratch/bundle" >"$scratch/targets"
  for arch in $archs; do
    target=$(grep -E -- "-$arch\$" "$scratch/targets" || true)
    if [[ -z $target ]]; then
      echo "$name: no code object for $arch"
      continue
    fi
    "$llvm/clang-offload-bundler" --unbundle --type=o --targets="$target" --input="$scratch/bundle" --output="$scratch/code"
    figures "$scratch/code" >"$scratch/figures"
    if [[ ! -s $scratch/figures ]]; then echo "$name: $arch: no kernel"; fi
    sed "s/^/$arch /" "$scratch/figures" >>"$scratch/table"
    {
      awk '$6 || $7 || $8 || $9 { print $NF ": scratch " $6 ", spilled SGPRs " $7 ", VGPRs " $8 ", stack " $9 }' \
        "$scratch/figures"
      broken_rules "$arch" "$scratch/code"
      for instruction in ${EXPECTED-}; do
        "$llvm/llvm-objdump" -d --no-show-raw-insn "$scratch/code" >"$scratch/listing"
        grep -q "$instruction" "$scratch/listing" || echo "no $instruction"
      done
    } | sed "s/^/$name: $arch: /"
  done
done >"$scratch/broken"

printf '%-40s%8s%6s%6s%6s%6s%6s%9s%8s\n' kernel arch wave VGPR AGPR SGPR LDS scratch spills
short_names <"$scratch/table" | awk '{
    name = $11
    for (i = 12; i <= NF; ++i) name = name " " $i
    sub(/\(.*/, "", name)
    printf "%-40s%8s%6d%6d%6d%6d%6d%9d%8d\n", name, $1, $2, $3, $4, $5, $6, $7, $8 + $9
  }' | sort -u
echo "LDS: a kernel's own; a block's scratch is given at launch."
if [[ -s $scratch/broken ]]; then
  echo "What breaks the rules of code_objects.sh:"
  short_names <"$scratch/broken"
  exit 1
fi
