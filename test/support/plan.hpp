// SPDX-License-Identifier: MIT
//! @file What a test of the operator consists of: a world, its calls with all ranks' tokens, and the order of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/schedule/config.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using oracle::Format;
enum class Ids { int32, int64 };
enum class Reduction { sum, weighted };

//! @brief The operators that plans can be played with.
struct OperatorKind {
  Format format;
  Reduction reduction;
  Ids ids;
};
inline constexpr OperatorKind kOperators[] = {
    {Format::bf16, Reduction::sum, Ids::int32},      {Format::bf16, Reduction::sum, Ids::int64},
    {Format::bf16, Reduction::weighted, Ids::int32}, {Format::fp16, Reduction::sum, Ids::int32},
    {Format::fp16, Reduction::weighted, Ids::int64}, {Format::fp32, Reduction::sum, Ids::int32},
    {Format::fp32, Reduction::sum, Ids::int64},      {Format::fp32, Reduction::weighted, Ids::int32},
};

//! @brief One operator on every rank.
struct Setup {
  Format format = Format::fp32;
  Ids ids = Ids::int32;
  Reduction reduction = Reduction::sum;
  int world = 2;
  int gpu_per_node = 0;  //!< of the LocalWorld
  int streams = 1;       //!< 2: buffer set i works on stream i
  bool own_memory = false;
  int jitter_us = 0;                      //!< a random sleep up to this long before every kernel of every rank
  fabric::LoopbackOptions loopback = {};  //!< between nodes
  EpDispatchCombineConfig config = {
      .hidden_dim = 16,
      .max_num_inp_token_per_rank = 8,
      .num_experts_per_rank = 2,
      .num_experts_per_token = 2,
      .timeout_ms = static_cast<std::int64_t>(env_number("MORI_EP_TEST_TIMEOUT_MS", kSanitized ? 120000 : 60000))};
  [[nodiscard]] int experts() const noexcept { return world * config.num_experts_per_rank; }
};

//! @brief One dispatch and its combine.
struct Call {
  std::vector<oracle::Tokens> tokens;  //!< by rank
  bool weights = true;
  bool zero_copy = false;
  bool return_weights = false;
  int pad = 0;         //!< how much every leading dimension exceeds the width: elements, or 16-byte pieces of rows
  int extra_rows = 0;  //!< rows that the external combine input has beyond recv_count
  int blocks = 0, warps = 0;
  int launch_of_rank = -1;    //!< only this rank's launches have that many; -1: all
  bool mixed_launch = false;  //!< blocks differ from rank to rank and between dispatch and combine
  std::vector<int> delay_us;  //!< by rank: sleep before the dispatch, on the stream
  int replay_of = -1;         //!< call whose kept routing is used instead of ids (and, without `weights`, weights)
};

struct Step {
  enum Kind { dispatch, send, recv, combine, combine_send, combine_recv, drop, keep, scribble } kind;
  int call;
};

struct Plan {
  Setup setup;
  std::vector<Call> calls;
  std::vector<Step> steps;  //!< empty: dispatch and combine, call by call
};

//! @brief Runs the plan on the machine of this executable and compares everything with the oracle, bit for bit. Empty
//!        when all is right. `hashes` gets a hash of all bytes that came out, by call and rank.
std::string play(const Plan& plan, std::vector<std::uint64_t>* hashes = nullptr);
//! @brief The same between nodes, on exec::Host: a node has `gpu_per_node` ranks, or a number that the plan decides; so
//!        have the faults of the network where `loopback` says nothing. With MORI_EP_TEST_NETWORK=1 play() does this.
std::string play_between_nodes(const Plan& plan, std::vector<std::uint64_t>* hashes = nullptr);
//! @brief The same with schedule::InterNodeV1, whose relays send fp32 back; or, bf16 weighted sums with int32 ids, bf16.
std::string play_by_relays(const Plan& plan, std::vector<std::uint64_t>* hashes = nullptr);
std::string play_by_rounding_relays(const Plan& plan, std::vector<std::uint64_t>* hashes = nullptr);
//! @brief The same over RDMA: bf16, sums, 32-bit ids.
std::string play_over_verbs(const Plan& plan);
std::string play_by_relays_over_verbs(const Plan& plan);
//! @brief The same on exec::Host, in executables of another machine.
std::string play_on_host(const Plan& plan, std::vector<std::uint64_t>* hashes = nullptr);
std::string describe(const Plan& plan);

enum class Routing {
  uniform,       // distinct experts
  any,           // experts may repeat
  one_expert,    // all to expert 0
  one_rank,      // all to the last rank's experts
  own_rank,      // stays at home
  never_own,     // never at home
  two_per_rank,  // pairs of experts of one rank
  all_masked,    // -1
  some_masked,   // -1 at random
  first_masked,
  last_masked,
  invalid,  // ids beyond the experts, negative ones, -1 and good ones
  skewed,   // low experts far more often
};
inline constexpr Routing kRoutings[] = {
    Routing::uniform,     Routing::any,          Routing::one_expert, Routing::one_rank,    Routing::own_rank,
    Routing::never_own,   Routing::two_per_rank, Routing::all_masked, Routing::some_masked, Routing::first_masked,
    Routing::last_masked, Routing::invalid,      Routing::skewed};
const char* name(Routing routing) noexcept;

//! @brief The ids of one token, appended.
void append_ids(const Setup& setup, Routing routing, int rank, Rng& rng, std::vector<std::int64_t>& ids);
//! @brief `count` tokens of a rank: random elements of moderate size (zeros and denormals among them), weights, scales.
oracle::Tokens make_tokens(const Setup& setup, Routing routing, int rank, int count, Rng& rng);
//! @brief A call in which rank r has `counts[r % size]` tokens.
Call make_call(const Setup& setup, Routing routing, const std::vector<int>& counts, Rng& rng);

//! @brief A plan of `calls` calls with the same routing kind, all ranks with M tokens.
Plan make_plan(const Setup& setup, Routing routing, int calls, std::uint64_t seed);

}  // namespace mori_ep::test
