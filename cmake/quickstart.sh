#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a bare Debian or Ubuntu to a running example or test suite, in one command.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/quickstart

usage() {
  cat >&2 <<TEXT
usage: bash cmake/quickstart.sh demo [ARGS]   run a MoE layer on eight ranks (examples/moe_layer; see 'demo --help')
       bash cmake/quickstart.sh test [ARGS]   build everything and run the test suite (ctest; see 'ctest --help')
       bash cmake/quickstart.sh install PACKAGE...   only install Debian packages, if they are missing

Builds into build/quickstart. Missing packages are installed with apt-get, as root or through sudo.
CXX chooses the compiler.
TEXT
}

say() { printf '==> %s\n' "$*" >&2; }

# Installs the packages that are missing; touches nothing, and no network, when none is.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "Not a Debian or Ubuntu system: expecting the equivalents of: $*"
    return
  fi
  local package missing=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      say "These packages are missing: ${missing[*]}"
      say "Run this as root, or ask someone who can to run: apt-get install ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
  fi
  say "Installing: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# A tool that is there already, from wherever, need not come from a package.
tools() {
  command -v "${CXX:-g++}" >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
}

# configure_and_build TARGET OPTIONS...
configure_and_build() {
  local target=$1 generator=()
  shift
  # The generator of an existing build folder cannot be changed.
  [[ -e $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || generator=(-G Ninja)
  if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}; fi
  say "Configuring $build"
  cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "$@" >&2
  say "Building"
  cmake --build "$build" --target "$target" --parallel "$(nproc)" >&2
}

case ${1-} in
  demo)
    shift
    mapfile -t needed < <(tools)
    install_packages "${needed[@]}" nlohmann-json3-dev libcli11-dev
    configure_and_build moe_layer -DMORI_EP_BUILD_EXAMPLES=ON -DMORI_EP_BUILD_BENCH=OFF -DMORI_EP_BUILD_TESTS=OFF
    say "Running examples/moe_layer $*"
    exec "$build/examples/moe_layer" "$@"
    ;;
  test)
    shift
    mapfile -t needed < <(tools)
    install_packages "${needed[@]}" nlohmann-json3-dev libcli11-dev catch2 libopenmpi-dev openmpi-bin
    configure_and_build all -DMORI_EP_BUILD_EXAMPLES=ON -DMORI_EP_BUILD_BENCH=ON -DMORI_EP_BUILD_TESTS=ON
    say "Testing"
    exec ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" "$@"
    ;;
  install)
    shift
    install_packages "$@"
    ;;
  *)
    usage
    exit 2
    ;;
esac
