// SPDX-License-Identifier: MIT
//! @file Options that are whole numbers, refused in one way. Only for translation units that have CLI11 anyway.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

namespace mori_ep::workload {

//! @brief For check() of an option, also of a list: what it was given must be a whole number from `low` to `high`.
//!        CLI11's own checks speak of those without an upper limit in floating point, with three hundred digits.
[[nodiscard]] inline CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  std::string const limits = std::to_string(low) + " to " + std::to_string(high);
  return {[=](const std::string& text) -> std::string {
            std::uint64_t number = 0;
            const char* const text_end = text.data() + text.size();
            auto const [end, error] = std::from_chars(text.data(), text_end, number);
            if (error == std::errc() && end == text_end && low <= number && number <= high) return "";
            return "\"" + text + "\" is not a whole number from " + limits;
          },
          limits};
}

}  // namespace mori_ep::workload
