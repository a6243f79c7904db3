// SPDX-License-Identifier: MIT
//! @file Which experts each token goes to: read from a routing log, or generated. Shared by examples and bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mori_ep::workload {

//! @brief The routing of a batch; `ids` and `weights` are [tokens, topk], row-major.
struct Routes {
  int topk = 0;
  int experts = 0;
  std::vector<std::int32_t> ids;  //!< in [0, experts), or -1: no expert
  std::vector<float> weights;

  [[nodiscard]] std::int64_t tokens() const noexcept {
    return topk > 0 ? static_cast<std::int64_t>(ids.size()) / topk : 0;
  }
};

//! @brief Reads JSON lines {"topk_ids": [...], "topk_weights": [...]}; blank lines and further keys are passed over.
//! @param experts ids must be below it; 0: the largest id + 1
//! @throw std::runtime_error naming file, line and what is wrong with it
[[nodiscard]] Routes read_route_log(const std::string& path, int experts = 0);

enum class Routing {
  uniform,  //!< distinct experts, all alike
  zipf,     //!< distinct experts, the i-th most popular one drawn in proportion to 1 / i
  grouped,  //!< group-limited top-k as in DeepSeek-V3: the four groups with the best two scores, then top-k in them
  one_hot   //!< the first choice is always expert 0, the others are uniform: the worst case for one rank
};
inline constexpr const char* kRoutingNames = "uniform, zipf, grouped, one-hot";
[[nodiscard]] std::optional<Routing> parse_routing(std::string_view text) noexcept;

//! @brief Routes of a batch; weights are positive and sum to 1. The same on every platform for the same arguments, and
//!        a token's route does not depend on how many tokens there are.
//! @param ranks `grouped` makes one group per rank where that divides the experts, else 8; the others ignore it
//! @throw std::invalid_argument when topk, experts and tokens do not go together
[[nodiscard]] Routes generate_routes(Routing routing, std::int64_t tokens, int topk, int experts, int ranks,
                                     std::uint64_t seed);

//! @brief The first `tokens` tokens; starts over when there are not as many.
[[nodiscard]] Routes take_tokens(const Routes& routes, std::int64_t tokens);

//! @brief A contiguous range of tokens.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t tokens() const noexcept { return end - begin; }
};
//! @brief The part of one rank: contiguous, the first `tokens % ranks` ranks get one token more.
[[nodiscard]] constexpr Shard shard_of(std::int64_t tokens, int rank, int ranks) noexcept {
  std::int64_t const base = tokens / ranks, more = tokens % ranks;
  std::int64_t const begin = rank * base + (rank < more ? rank : more);
  return {begin, begin + base + (rank < more ? 1 : 0)};
}
[[nodiscard]] Routes slice(const Routes& routes, Shard shard);

}  // namespace mori_ep::workload
