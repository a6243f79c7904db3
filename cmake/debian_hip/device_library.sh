#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# device_library.sh FOLDER: makes FOLDER a ROCm device library that clang-22 takes, out of Debian 12's rocm-device-libs,
# which are older than clang-22 and than some of its targets.
set -euo pipefail

folder=$1
debian=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode
if [[ ! -e $debian/hip.bc ]]; then
  echo "$debian/hip.bc is missing: apt-get install rocm-device-libs" >&2
  exit 1
fi
mkdir -p "$folder"
ln -sf "$debian"/*.bc "$folder"/
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# text FILE: the module as text, its definitions kept when nothing of the module refers to them.
text() { llvm-dis-22 "$debian/$1.bc" -o - | sed 's/ linkonce_odr / weak_odr /'; }

# A target that Debian's release does not know lacks one module, with one number in it.
declare -A number=([942]=9402 [950]=9500 [1250]=12050)
for target in "${!number[@]}"; do
  rm -f "$folder/oclc_isa_version_$target.bc"
  text oclc_isa_version_90a | sed "s/ i32 9010,/ i32 ${number[$target]},/" |
    llvm-as-22 - -o "$folder/oclc_isa_version_$target.bc"
done

# clang-22 links neither hip.bc, which Debian's HIP headers call for every fence, nor oclc_daz_opt_off.bc, which the
# maths functions read: both come with the module that every compilation links.
for module in hip oclc_daz_opt_off; do text $module | llvm-as-22 - -o "$scratch/$module.bc"; done
for width in on off; do
  text oclc_wavefrontsize64_$width | llvm-as-22 - -o "$scratch/width.bc"
  rm -f "$folder/oclc_wavefrontsize64_$width.bc"
  llvm-link-22 "$scratch"/{width,hip,oclc_daz_opt_off}.bc -o "$folder/oclc_wavefrontsize64_$width.bc"
done
