// SPDX-License-Identifier: MIT
//! @file What a row looks like on the wire, chosen apart for dispatch and for combine.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/numeric/coded_row.hpp"

namespace mori_ep::quant {

//! @brief What a dispatch may carry: rows as they are, of elements or of codes (their scales are the caller's, and travel
//!        beside them as bytes), or elements that are coded on the way.
template <class F>
concept DispatchForm = RowForm<F> || Code<F>;

//! @brief A wire format names what dispatch carries and what combine sums.
template <class Q>
concept QuantPolicy = requires {
  requires DispatchForm<typename Q::Dispatch>;
  requires RowForm<typename Q::Combine>;
  { Q::kName } -> std::convertible_to<const char*>;
};

//! @brief A format whose combine rows can be summed as they lie in the registered buffer.
template <class Q>
concept HasPlainCombine = QuantPolicy<Q> && Element<typename Q::Combine>;
//! @brief A format whose dispatch codes rows on the way: the operator writes their scales.
template <class Q>
concept CodesDispatch = QuantPolicy<Q> && CodedRowType<typename Q::Dispatch>;

namespace detail {

template <DispatchForm F>
struct Units {
  using Input = F;
  using Received = F;
};
template <CodedRowType F>
struct Units<F> {
  using Input = typename F::ElementType;
  using Received = typename F::CodeType;
};

template <class Unit>
struct PerUnit {
  static constexpr int kElements = 1;
};
template <Code C>
struct PerUnit<C> {
  static constexpr int kElements = numeric::CodeTraits<C>::kElements;
};

//! @brief Text of a type's name, put together at compile time.
struct Text {
  char text[96] = {};
  int length = 0;

  constexpr Text& add(const char* more) noexcept {
    for (; *more != 0 && length < 95; ++more) text[length++] = *more;
    return *this;
  }
  constexpr Text& add(int number) noexcept {
    if (number > 9) add(number / 10);
    char const digit[] = {static_cast<char>('0' + number % 10), 0};
    return add(digit);
  }
};

template <DispatchForm F>
constexpr Text name_of() noexcept {
  Text out;
  if constexpr (Element<F>) {
    out.add(element_name<F>());
  } else if constexpr (Code<F>) {
    out.add(F::kName);
  } else {
    out.add(F::CodeType::kName);
    if constexpr (!F::kScaled)
      out.add(" cast");
    else
      out.add(" by ").add(F::kBlock);
    if constexpr (std::same_as<typename F::ScaleType, e8m0>) out.add(" e8m0");
    out.add(" of ").add(element_name<typename F::ElementType>());
  }
  return out;
}

}  // namespace detail

//! @brief What the caller gives to dispatch and what it receives: elements, or codes. A row of H elements is
//!        `units_of<Unit>(H)` of them.
template <DispatchForm F>
using InputUnit = typename detail::Units<F>::Input;
template <DispatchForm F>
using ReceivedUnit = typename detail::Units<F>::Received;
template <class Unit>
[[nodiscard]] constexpr std::int64_t units_of(std::int64_t hidden) noexcept {
  return hidden / detail::PerUnit<Unit>::kElements;
}

//! @brief F where it is coded on the way; else void.
template <DispatchForm F>
using CodedOrVoid = std::conditional_t<CodedRowType<F>, F, void>;

//! @brief What H must be a multiple of, so that every row, the caller's and on the wire, is one of 16 bytes.
template <QuantPolicy Q>
[[nodiscard]] constexpr int hidden_unit() noexcept {
  auto const unit = []<class F>(F*) {
    if constexpr (CodedRowType<F>)
      return F::kUnit;
    else
      return static_cast<int>(16 / sizeof(F)) * detail::PerUnit<F>::kElements;
  };
  int const dispatch = unit(static_cast<typename Q::Dispatch*>(nullptr)),
            combine = unit(static_cast<typename Q::Combine*>(nullptr));
  return dispatch > combine ? dispatch : combine;  // powers of two
}

//! @brief Bytes of a received row, without its scales, and of a row that combine sums.
template <QuantPolicy Q>
[[nodiscard]] constexpr std::size_t received_row_bytes(std::size_t hidden) noexcept {
  using F = typename Q::Dispatch;
  if constexpr (RowForm<F>)
    return payload_bytes_of<F>(hidden);
  else
    return hidden / static_cast<std::size_t>(detail::PerUnit<F>::kElements) * sizeof(F);
}
template <QuantPolicy Q>
[[nodiscard]] constexpr std::size_t combine_row_bytes(std::size_t hidden) noexcept {
  return row_bytes_of<typename Q::Combine>(hidden);
}

//! @brief Dispatch as F has it, combine as G has it.
template <DispatchForm F, RowForm G>
struct Forms {
  using Dispatch = F;
  using Combine = G;

 private:
  static constexpr detail::Text kText = [] {
    auto const dispatch = detail::name_of<F>(), combine = detail::name_of<G>();
    if constexpr (std::same_as<F, G>) return combine;
    return detail::Text().add(dispatch.text).add(" > ").add(combine.text);
  }();

 public:
  static constexpr const char* kName = kText.text;
};

}  // namespace mori_ep::quant
