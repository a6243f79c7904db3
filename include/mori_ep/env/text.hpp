// SPDX-License-Identifier: MIT
//! @file What the text of an environment variable is made of: numbers, words and lists of names. Nothing here allocates
//!       but where it says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace mori_ep {

//! @brief Up to `kRoom` characters, held by value: reading the environment allocates nothing.
template <std::size_t kRoom>
class FixedText {
 public:
  static constexpr std::size_t kMaxLength = kRoom;
  //! @return whether there was room; if not, nothing has changed
  constexpr bool assign(std::string_view text) noexcept {
    if (text.size() > kRoom) return false;
    for (std::size_t i = 0; i < text.size(); ++i) data_[i] = text[i];
    data_[length_ = text.size()] = '\0';
    return true;
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {data_, length_}; }
  [[nodiscard]] constexpr const char* c_str() const noexcept { return data_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return length_ == 0; }

 private:
  char data_[kRoom + 1] = {};  // not "": clang 22 keeps that literal as long as the first kRoom
  std::size_t length_ = 0;
};

//! @brief Which names of interfaces or devices a list admits.
struct NameFilter {
  FixedText<1023> list;   //!< as given, checked
  bool prefixes = false;  //!< names without = stand for all that begin so

  [[nodiscard]] constexpr bool is_set() const noexcept { return !list.empty(); }
  [[nodiscard]] constexpr bool excludes() const noexcept { return list.view().starts_with('^'); }
  //! @brief The names of the list, without its marks.
  [[nodiscard]] constexpr std::string_view names() const noexcept {
    std::string_view rest = list.view();
    if (rest.starts_with('^')) rest.remove_prefix(1);
    if (prefixes && rest.starts_with('=')) rest.remove_prefix(1);
    return rest;
  }
  //! @brief Everything, when no list is set.
  [[nodiscard]] constexpr bool admits(std::string_view name) const noexcept {
    if (!is_set()) return true;
    std::string_view rest = names();
    bool const whole = !prefixes || list.view().substr(excludes() ? 1 : 0).starts_with('=');
    for (bool more = true; more;) {
      std::size_t const comma = rest.find(',');
      std::string_view const listed = rest.substr(0, comma);
      if (whole ? name == listed : name.starts_with(listed)) return !excludes();
      more = comma != std::string_view::npos;
      if (more) rest.remove_prefix(comma + 1);
    }
    return excludes();
  }
};

namespace detail {

constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
constexpr bool same_word(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

//! @brief "digits" or "digits.digits" times `unit`, rounded down.
//! @return none where the text is no such number; numeric_limits::max() stands for that and all above
constexpr std::optional<std::int64_t> scaled_decimal(std::string_view text, std::int64_t unit, bool fraction) noexcept {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::size_t const point = text.find('.');
  std::string_view const whole_digits = text.substr(0, point);
  std::string_view const digits_after = point == std::string_view::npos ? "" : text.substr(point + 1);
  if (whole_digits.empty() || (point != std::string_view::npos && (!fraction || digits_after.empty())))
    return std::nullopt;
  for (std::string_view const digits : {whole_digits, digits_after})
    for (char const c : digits)
      if (!is_digit(c)) return std::nullopt;
  // From the last digit, each step rounded down: the same as rounding down once, and no digit is one too many.
  std::int64_t part = 0;
  for (std::size_t i = digits_after.size(); i-- > 0;) part = ((digits_after[i] - '0') * unit + part) / 10;
  std::int64_t whole = 0;
  for (char const c : whole_digits) {
    if (whole > (kMax / unit - (c - '0')) / 10) return kMax;
    whole = 10 * whole + (c - '0');
  }
  return whole * unit > kMax - part ? kMax : whole * unit + part;
}

//! @brief The bytes that a text such as 4G stands for, as scaled_decimal.
constexpr std::optional<std::int64_t> bytes_of(std::string_view text) noexcept {
  std::size_t end = 0;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
  std::string_view const suffix = text.substr(end);
  if (suffix.empty()) return scaled_decimal(text, 1, false);
  constexpr std::string_view kUnits = "kmgt";
  std::size_t const unit = kUnits.find(lower(suffix[0]));
  std::string_view const rest = suffix.substr(1);
  if (unit == std::string_view::npos || !(rest.empty() || same_word(rest, "b") || same_word(rest, "ib")))
    return std::nullopt;
  return scaled_decimal(text.substr(0, end), std::int64_t{1} << (10 * (unit + 1)), true);
}

//! @brief How many letters must be put in, left out or changed to make one name the other. Allocates.
inline std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const changed = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
      diagonal = row[j];
      std::size_t const one_more = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
      row[j] = changed < one_more ? changed : one_more;
    }
  }
  return row[b.size()];
}

}  // namespace detail
}  // namespace mori_ep
