// SPDX-License-Identifier: MIT
//! @file Which codes a target makes and reads by instructions of its own; the others it computes, to the same bits.
#pragma once

#include <concepts>
#include <cstdint>

#include "mori_ep/numeric/coded_row.hpp"

namespace mori_ep::exec {

//! @brief What conversions are told apart by. `host` is any CPU; sm_80 stands for NVIDIA's targets before sm_89, gfx90a for
//!        AMD's that are not named here.
enum class ConversionTarget : std::uint8_t { host, sm_80, sm_89, gfx90a, gfx942, gfx950, gfx12 };

inline constexpr ConversionTarget kConversionTargets[] = {
    ConversionTarget::host,   ConversionTarget::sm_80,  ConversionTarget::sm_89, ConversionTarget::gfx90a,
    ConversionTarget::gfx942, ConversionTarget::gfx950, ConversionTarget::gfx12};

constexpr const char* name(ConversionTarget target) noexcept {
  switch (target) {
    case ConversionTarget::host:
      return "host";
    case ConversionTarget::sm_80:
      return "sm_80";
    case ConversionTarget::sm_89:
      return "sm_89 and later";
    case ConversionTarget::gfx90a:
      return "gfx90a";
    case ConversionTarget::gfx942:
      return "gfx942";
    case ConversionTarget::gfx950:
      return "gfx950";
    case ConversionTarget::gfx12:
      return "gfx12";
  }
  return "";
}

//! @brief Does this library convert C from and to fp32 by instructions of the target? Sources: PTX ISA (cvt); AMD's
//!        CDNA3, CDNA4 and RDNA4 ISA guides.
template <Code C>
constexpr bool converts_by_instruction(ConversionTarget target) noexcept {
  constexpr bool kOcp8 = std::same_as<C, fp8_e4m3> || std::same_as<C, fp8_e5m2>;
  switch (target) {
    case ConversionTarget::host:
    case ConversionTarget::sm_80:
    case ConversionTarget::gfx90a:
      return false;
    case ConversionTarget::sm_89:
    case ConversionTarget::gfx12:
      return kOcp8;
    case ConversionTarget::gfx942:
      return std::same_as<C, fp8_e4m3_fnuz>;
    case ConversionTarget::gfx950:
      return kOcp8 || std::same_as<C, fp4x2_e2m1>;
  }
  return false;
}

}  // namespace mori_ep::exec
