// SPDX-License-Identifier: MIT
//! @file FNV-1a: one number for a text or bytes, the same on every rank. For telling things apart, not for secrets.
#pragma once

#include <cstdint>
#include <string_view>

namespace mori_ep::comm {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ull;

//! @brief The hash of what `before` is the hash of, followed by `byte`.
[[nodiscard]] constexpr std::uint64_t hash_byte(std::uint8_t byte, std::uint64_t before) noexcept {
  return (before ^ byte) * 0x100000001b3ull;
}
[[nodiscard]] constexpr std::uint64_t hash_text(std::string_view text, std::uint64_t before = kHashStart) noexcept {
  for (char const c : text) before = hash_byte(static_cast<std::uint8_t>(c), before);
  return before;
}
//! @brief The eight bytes of a number, the lowest first.
[[nodiscard]] constexpr std::uint64_t hash_number(std::uint64_t number, std::uint64_t before = kHashStart) noexcept {
  for (int i = 0; i < 8; ++i) before = hash_byte(static_cast<std::uint8_t>(number >> (8 * i)), before);
  return before;
}

}  // namespace mori_ep::comm
