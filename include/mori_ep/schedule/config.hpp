// SPDX-License-Identifier: MIT
//! @file The operator's configuration, in MORI's field names, and its limits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/error.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "mori_ep/routing/route.hpp"

namespace mori_ep {

//! @brief What every rank of a world must configure alike (launch parameters excepted). Rank and world come from the
//!        Communicator, the data type and kernel from the operator's type.
//!
//! Letters used throughout: W ranks, M = max_num_inp_token_per_rank, H = hidden_dim, K = num_experts_per_token,
//! E_r = num_experts_per_rank, R = receive capacity in rows.
struct EpDispatchCombineConfig {
  int hidden_dim = 0;                  //!< H, elements per row; a row, as it travels, is a multiple of 16 bytes
  int max_num_inp_token_per_rank = 0;  //!< M, at least 1; a call may bring 0 to M tokens
  int num_experts_per_rank = 0;        //!< E_r, at least 1
  int num_experts_per_token = 0;       //!< K, 1 to 32
  int num_experts = 0;                 //!< 0, or the total, which must be W * E_r
  int scale_dim = 0;                   //!< scales per token carried beside the row; 0: none
  int scale_type_size = 0;             //!< bytes of one scale
  int max_total_recv_tokens = 0;       //!< R; 0: W * M, which nothing can exceed
  int num_buffer_sets = 1;             //!< 1 or 2: how many tickets may be in flight
  int reduce_gpu_per_node = 0;      //!< combine sums ranks of a node first, nodes then; 0: as the Communicator groups
  int rows_per_put = 0;             //!< between nodes, InterNodeV1: rows that one put carries; 0: 256 KiB of them
  int block_num = 0;                //!< 0: the machine's default
  int rdma_block_num = 0;           //!< InterNodeV1: blocks that only relay; 0: all send first, then relay
  int warp_num_per_block = 0;       //!< 0: the machine's default
  std::int64_t timeout_ms = 30000;  //!< how long a launch may wait for its peers in all
  std::uint32_t first_epoch = 0;    //!< where epochs start; the protocol is right for any value

  [[nodiscard]] constexpr std::size_t scale_bytes() const noexcept {
    return static_cast<std::size_t>(scale_dim) * static_cast<std::size_t>(scale_type_size);
  }
  //! @brief Of so many bytes each.
  [[nodiscard]] constexpr std::int32_t rows_per_chunk(std::size_t row_bytes) const noexcept {
    if (rows_per_put > 0) return rows_per_put < max_num_inp_token_per_rank ? rows_per_put : max_num_inp_token_per_rank;
    auto const rows = static_cast<std::int64_t>((std::size_t{256} << 10) / row_bytes);
    return rows < 1                            ? 1
           : rows < max_num_inp_token_per_rank ? static_cast<std::int32_t>(rows)
                                               : max_num_inp_token_per_rank;
  }
  [[nodiscard]] constexpr std::int64_t recv_capacity(int world) const noexcept {
    std::int64_t const all = std::int64_t{world} * max_num_inp_token_per_rank;
    return max_total_recv_tokens > 0 && max_total_recv_tokens < all ? max_total_recv_tokens : all;
  }
};

//! @brief Bytes of one rank's arena: all of it, and what the contract itself needs (rows received and rows to combine,
//!        with their weights, ids, scales and positions).
struct Footprint {
  std::size_t bytes = 0;
  std::size_t contract_bytes = 0;
};

//! @brief One named field of the configuration, for comparison between ranks.
struct ConfigField {
  const char* name;
  std::int64_t (*get)(const EpDispatchCombineConfig&);
};

//! @brief Every field that must be the same on all ranks.
inline constexpr ConfigField kSharedConfigFields[] = {
    {"hidden_dim", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.hidden_dim}; }},
    {"max_num_inp_token_per_rank",
     [](const EpDispatchCombineConfig& c) { return std::int64_t{c.max_num_inp_token_per_rank}; }},
    {"num_experts_per_rank", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.num_experts_per_rank}; }},
    {"num_experts_per_token", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.num_experts_per_token}; }},
    {"num_experts", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.num_experts}; }},
    {"scale_dim", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.scale_dim}; }},
    {"scale_type_size", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.scale_type_size}; }},
    {"max_total_recv_tokens", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.max_total_recv_tokens}; }},
    {"num_buffer_sets", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.num_buffer_sets}; }},
    {"rows_per_put", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.rows_per_put}; }},
    {"reduce_gpu_per_node", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.reduce_gpu_per_node}; }},
    {"first_epoch", [](const EpDispatchCombineConfig& c) { return std::int64_t{c.first_epoch}; }},
};

inline constexpr std::int64_t kMaxTimeoutMs = 1'000'000'000;  //!< 11 days; in nanoseconds it still fits 64 bits

//! @brief Checks one rank's configuration; `hidden_unit` is what the operator's rows are a multiple of, in elements.
[[nodiscard]] constexpr Status validate(const EpDispatchCombineConfig& c, int world, int hidden_unit) noexcept {
  auto const bad = [](const char* field, std::int64_t value, std::int64_t limit, const char* hint) {
    return Status{Error{.code = Errc::invalid_config,
                        .phase = Phase::create,
                        .field = field,
                        .value = value,
                        .limit = limit,
                        .hint = hint}};
  };
  constexpr std::int64_t kMaxInt = INT32_MAX;
  if (world < 1) return bad("world", world, 1, "A world has at least one rank.");
  if (c.hidden_dim < 1) return bad("hidden_dim", c.hidden_dim, 1, "Give the elements per row.");
  if (c.hidden_dim % hidden_unit != 0)
    return bad("hidden_dim", c.hidden_dim, hidden_unit,
               "A row must be a multiple of 16 bytes, coded, too: pad hidden_dim to a multiple of the limit.");
  if (c.max_num_inp_token_per_rank < 1)
    return bad("max_num_inp_token_per_rank", c.max_num_inp_token_per_rank, 1, "Give the most tokens a call may bring.");
  if (std::int64_t{world} * c.max_num_inp_token_per_rank > kMaxInt)
    return bad("max_num_inp_token_per_rank", c.max_num_inp_token_per_rank, kMaxInt / world,
               "Source positions are 32-bit: lower it, or split the batch.");
  if (c.num_experts_per_rank < 1)
    return bad("num_experts_per_rank", c.num_experts_per_rank, 1, "Every rank hosts at least one expert.");
  if (std::int64_t{world} * c.num_experts_per_rank > routing::kMaxExperts)
    return bad("num_experts_per_rank", c.num_experts_per_rank, routing::kMaxExperts / world,
               "Use fewer experts per rank: a block counts all of them in its scratch.");
  if (c.num_experts != 0 && c.num_experts != world * c.num_experts_per_rank)
    return bad("num_experts", c.num_experts, std::int64_t{world} * c.num_experts_per_rank,
               "It must be world * num_experts_per_rank: pad the expert count, or change the world.");
  if (c.num_experts_per_token < 1 || c.num_experts_per_token > routing::kMaxTopk)
    return bad("num_experts_per_token", c.num_experts_per_token, routing::kMaxTopk, "Give 1 to the limit.");
  if (std::int64_t{c.max_num_inp_token_per_rank} * c.num_experts_per_token > kMaxInt)
    return bad("max_num_inp_token_per_rank", c.max_num_inp_token_per_rank, kMaxInt / c.num_experts_per_token,
               "A rank's ids are counted in 32 bits: lower it, or split the batch.");
  if (c.scale_dim < 0) return bad("scale_dim", c.scale_dim, 0, "Give 0 for rows without scales.");
  if (c.scale_dim > 0 && c.scale_type_size < 1)
    return bad("scale_type_size", c.scale_type_size, 1, "scale_dim is set: give the bytes of one scale.");
  if (c.scale_type_size < 0 || (c.scale_dim == 0 && c.scale_type_size > 16))
    return bad("scale_type_size", c.scale_type_size, 16, "Give the bytes of one scale.");
  if (c.max_total_recv_tokens < 0)
    return bad("max_total_recv_tokens", c.max_total_recv_tokens, 0, "Give 0 for room for everything.");
  if (c.num_buffer_sets < 1 || c.num_buffer_sets > 2)
    return bad("num_buffer_sets", c.num_buffer_sets, 2, "Give 1, or 2 for two tickets in flight.");
  if (c.reduce_gpu_per_node < 0)
    return bad("reduce_gpu_per_node", c.reduce_gpu_per_node, 0, "Give 0 to group as the Communicator does.");
  if (c.rows_per_put < 0) return bad("rows_per_put", c.rows_per_put, 0, "Give 0 for as many as make 256 KiB.");
  if (c.timeout_ms < 1)
    return bad("timeout_ms", c.timeout_ms, 1, "Every wait has a deadline: give at least a millisecond.");
  if (c.timeout_ms > kMaxTimeoutMs)
    return bad("timeout_ms", c.timeout_ms, kMaxTimeoutMs, "A wait this long is no deadline: give at most the limit.");
  return {};
}

}  // namespace mori_ep
