// SPDX-License-Identifier: MIT
// The route rule, table by table.
#include <algorithm>
#include <set>
#include <vector>

#include "mori_ep/routing/route.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using namespace routing;

TEST_CASE("an expert lives on rank id / E_r, everything else nowhere") {
  struct Case {
    std::int32_t world, per_rank;
    std::int64_t id;
    std::int32_t rank;
  };
  for (Case const c : {Case{1, 1, 0, 0},
                       {1, 1, 1, -1},
                       {8, 32, 0, 0},
                       {8, 32, 31, 0},
                       {8, 32, 32, 1},
                       {8, 32, 255, 7},
                       {8, 32, 256, -1},
                       {8, 32, -1, -1},
                       {8, 32, -2, -1},
                       {3, 5, 14, 2},
                       {3, 5, 15, -1},
                       {72, 1, 71, 71},
                       {72, 1, 72, -1},
                       {2, 4096, 8191, 1},
                       {2, 4096, 4095, 0},
                       {8, 32, INT32_MAX, -1},
                       {8, 32, INT32_MIN, -1}}) {
    INFO(c.world << " x " << c.per_rank << ", id " << c.id);
    Placement const p(c.world, c.per_rank);
    REQUIRE(p.experts() == c.world * c.per_rank);
    REQUIRE(p.rank_of(static_cast<std::int32_t>(c.id)) == c.rank);
    REQUIRE(p.rank_of(c.id) == c.rank);
  }
  Placement const p(8, 32);
  for (std::int64_t id :
       {std::int64_t{1} << 32, (std::int64_t{1} << 32) + 5, INT64_MAX, INT64_MIN, -(std::int64_t{1} << 32)})
    REQUIRE(p.rank_of(id) == -1);
}

TEST_CASE("every expert of every division up to the limit") {
  int wrong = 0;
  for (std::int32_t per_rank = 1; per_rank <= kMaxExperts; per_rank += per_rank < 300 ? 1 : 97) {
    Placement const p(static_cast<std::int32_t>(kMaxExperts) / per_rank, per_rank);
    for (std::int32_t id = 0; id < p.experts(); ++id) wrong += p.rank_of(id) == id / per_rank ? 0 : 1;
    wrong += p.rank_of(p.experts()) == -1 ? 0 : 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("bits are counted and masked at every width") {
  for (std::uint64_t bits : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63, ~std::uint64_t{0},
                             std::uint64_t{0xf0f0f0f0f0f0f0f1}, std::uint64_t{0x80000000}}) {
    std::int32_t want = 0, low = 0;
    for (int i = 0; i < 64; ++i) {
      REQUIRE(count_bits(bits & low_bits(i)) == want);
      want += (bits >> i & 1) != 0 ? 1 : 0;
      low += i < 32 && (bits >> i & 1) != 0 ? 1 : 0;
    }
    REQUIRE(count_bits(bits) == want);
    REQUIRE(count_bits(static_cast<std::uint32_t>(bits)) == low);
  }
}

TEST_CASE("low bits") {
  REQUIRE(low_bits(0) == 0);
  REQUIRE(low_bits(-5) == 0);
  REQUIRE(low_bits(1) == 1);
  REQUIRE(low_bits(63) == ~std::uint64_t{0} >> 1);
  REQUIRE(low_bits(64) == ~std::uint64_t{0});
  REQUIRE(low_bits(100) == ~std::uint64_t{0});
}

TEST_CASE("only the first mention of an expert counts") {
  std::int64_t const ids[] = {7, -1, 7, 3, -1, 3, 7, 0};
  bool const first[] = {true, true, false, true, false, false, false, true};
  for (std::int32_t k = 0; k < 8; ++k) REQUIRE(!named_before(ids, k, ids[k]) == first[k]);
}

TEST_CASE("source positions come apart again") {
  for (std::int32_t m : {1, 31, 4096})
    for (std::int32_t rank : {0, 1, 71})
      for (std::int32_t token : {0, m - 1})
        REQUIRE((decode_send_flat_idx(rank * m + token, m) == SourcePos{rank, token}));
  REQUIRE((decode_send_flat_idx(INT32_MAX, 1 << 20) == SourcePos{2047, (1 << 20) - 1}));
}

}  // namespace mori_ep::test
