// SPDX-License-Identifier: MIT
#include <cstdint>
#include <limits>

#include "mori_ep/comm/symmetric_layout.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using comm::LayoutBuilder;

static_assert([] {
  LayoutBuilder at;
  auto const a = at.add(3, 7), b = at.add(0, 100), c = at.add(256, 1), d = at.add(1, 1);
  return a.offset == 0 && a.bytes == 21 && b.offset == 256 && b.bytes == 0 && c.offset == 256 && d.offset == 512 &&
         at.bytes() == 768 && !at.overflow();
}());

TEST_CASE("regions are aligned and do not overlap") {
  LayoutBuilder at;
  std::size_t end = 0;
  for (std::size_t count : {1u, 5u, 64u, 1000u})
    for (std::size_t each : {1u, 4u, 24u, 14336u}) {
      auto const region = at.add(count, each);
      REQUIRE(region.bytes == count * each);
      REQUIRE(region.offset % LayoutBuilder::kAlign == 0);
      REQUIRE(region.offset >= end);
      end = region.offset + region.bytes;
      REQUIRE(at.bytes() >= end);
    }
}

TEST_CASE("a size that does not fit is noticed") {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  LayoutBuilder product, rounding, sum;
  product.add(kMax / 2, 3);
  REQUIRE(product.overflow());
  rounding.add(kMax - 3, 1);
  REQUIRE(rounding.overflow());
  sum.add(kMax / 2, 1);
  REQUIRE_FALSE(sum.overflow());
  sum.add(kMax / 2 + 1, 1);
  REQUIRE(sum.overflow());
}

TEST_CASE("offsets beyond 2^32 bytes stay what they are") {
  LayoutBuilder at;
  at.add(std::size_t{3} << 30, 2);
  auto const region = at.add(16, 4);
  REQUIRE(region.offset == std::size_t{6} << 30);
}

}  // namespace mori_ep::test
