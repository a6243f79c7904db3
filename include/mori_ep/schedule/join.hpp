// SPDX-License-Identifier: MIT
//! @file The join check: before anything moves, every rank sees every rank's configuration and comes to the same
//! verdict.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/hash.hpp"
#include "mori_ep/fabric/command.hpp"
#include "mori_ep/schedule/config.hpp"
#include "mori_ep/schedule/scales.hpp"

namespace mori_ep::schedule {

inline constexpr std::uint32_t kProtocolVersion =
    6;  //!< in header-only code the wire layout is the ABI: any change counts here

//! @brief A hash over names, so that ranks built from different types or versions find out.
class ProtocolHash {
 public:
  constexpr ProtocolHash& add(std::string_view text) noexcept {
    value_ = comm::hash_byte(0xff, comm::hash_text(text, value_));  // 0xff is in no text: it divides them
    return *this;
  }
  constexpr ProtocolHash& add(std::uint64_t number) noexcept {
    value_ = comm::hash_number(number, value_);
    return *this;
  }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = comm::kHashStart;
};

//! @brief What a network would have to carry, in bytes: the largest put, the arena, the signals' part of it. 0: none.
struct Carried {
  std::uint64_t put = 0, arena = 0, signals = 0;
};

//! @brief What each rank puts on the table. Plain data: errors are derived from it on every rank alike, not sent.
struct JoinRecord {
  std::uint64_t protocol = 0;
  EpDispatchCombineConfig config;
  std::int32_t refused_scales = 0;                     //!< scale_dim, where the operator makes the scales
  std::int32_t hidden_unit = 1;                        //!< what H must be a multiple of for the rank's operator
  std::int64_t needed_bytes = 0;                       //!< the arena's size by this rank's configuration
  std::int64_t heap_limit = INT64_MAX, heap_used = 0;  //!< bytes: MORI_SHMEM_HEAP_SIZE and what is taken of it
  std::int64_t memory_bytes = 0;                       //!< what it has: allocated, or the caller's
  std::int32_t memory_given = 0;                       //!< nonzero: the caller's
  std::int32_t memory_aligned = 1;
  std::int32_t memory_descriptor = 0;         //!< nonzero: other processes can map it by one
  std::int32_t shares_between_processes = 0;  //!< can another process map memory of its machine?
  Carried carried = {};
  std::int32_t sums_by = 0;                     //!< nonzero: ranks that its schedule sums first
  std::int32_t near_begin = 0;                  //!< the first of the ranks that load and store reach from it
  std::uint64_t process = 0, host = 0;          //!< equal where ranks share them; 0: all do
  std::int32_t memory_shared = 1;               //!< has its device asked for access to the others it can reach?
  std::int32_t ordinal = 0;                     //!< of its device, as its process numbers them
  std::uint64_t reachable = ~std::uint64_t{0};  //!< the devices whose memory its device can reach, a bit per ordinal
  std::uint64_t device = 0;                     //!< ranks of equal nonzero values share their device's blocks
  std::int32_t max_blocks = 0;                  //!< that its device can keep resident with the configured warps
  std::int32_t most_blocks = 1 << 30;           //!< that the schedule has words for
  std::int32_t max_warps = 0;
  std::int32_t devices = 1;    //!< that it could run on
  std::int32_t capturing = 0;  //!< nonzero: there was no memory because a stream captures
};

//! @brief How many ranks share rank `rank`'s device, itself included.
[[nodiscard]] inline int sharers_of(const std::vector<JoinRecord>& records, int rank) noexcept {
  std::uint64_t const device = records[static_cast<std::size_t>(rank)].device;
  int sharers = 0;
  for (const JoinRecord& r : records) sharers += r.device == device ? 1 : 0;
  return device == 0 ? 1 : sharers;
}

//! @brief How many launches may be on rank `rank`'s device at the same time: one for each rank there and buffer set,
//!        since every set may work on a stream of its own. Their blocks may all wait for each other, so all must be
//!        resident.
[[nodiscard]] inline int launches_beside(const std::vector<JoinRecord>& records, int rank) noexcept {
  const JoinRecord& r = records[static_cast<std::size_t>(rank)];
  return r.device == 0 ? 1 : sharers_of(records, rank) * r.config.num_buffer_sets;
}

//! @brief The first error among all ranks' records, the same on every rank; ok when all may go on.
[[nodiscard]] inline Status judge(const std::vector<JoinRecord>& records) noexcept {
  auto const world = static_cast<int>(records.size());
  // Types first: only ranks of one type can judge each other's sizes.
  for (int rank = 0; rank < world; ++rank)
    if (records[static_cast<std::size_t>(rank)].protocol != records[0].protocol)
      return Error{.code = Errc::protocol_mismatch,
                   .phase = Phase::create,
                   .rank = rank,
                   .peer = 0,
                   .field = "protocol hash",
                   .value = static_cast<std::int64_t>(records[static_cast<std::size_t>(rank)].protocol),
                   .limit = static_cast<std::int64_t>(records[0].protocol),
                   .hint = "All ranks must run the same version and the same operator type."};
  for (int rank = 0; rank < world; ++rank) {
    const JoinRecord& r = records[static_cast<std::size_t>(rank)];
    auto const fail = [&](Error error) {
      error.phase = Phase::create;
      error.rank = rank;
      return Status{error};
    };
    if (r.refused_scales != 0) return fail(scales_refused(r.refused_scales));
    if (Status s = validate(r.config, world, r.hidden_unit); !s.ok()) return fail(s.error());
    for (const ConfigField& field : kSharedConfigFields)
      if (field.get(r.config) != field.get(records[0].config))
        return fail({.code = Errc::config_mismatch,
                     .peer = 0,
                     .field = field.name,
                     .value = field.get(r.config),
                     .limit = field.get(records[0].config),
                     .hint = "Every rank must be given the value of rank 0."});
    if (r.sums_by != 0 && r.config.reduce_gpu_per_node != 0 && r.config.reduce_gpu_per_node != r.sums_by)
      return fail({.code = Errc::invalid_config,
                   .field = "reduce_gpu_per_node",
                   .value = r.config.reduce_gpu_per_node,
                   .limit = r.sums_by,
                   .hint = "This schedule's relays sum what their node returns: give the ranks of a node, or 0."});
    int const blocks = r.config.block_num > 0 ? r.config.block_num : r.most_blocks;
    if (auto const relays = launch::resolve_relays(0, r.config.rdma_block_num, blocks, r.sums_by != 0); !relays.ok()) {
      Error error = relays.error();
      error.code = Errc::invalid_config;
      return fail(error);
    }
    if (r.devices < 1)
      return fail({.code = Errc::device_error,
                   .field = "visible GPUs",
                   .value = r.devices,
                   .limit = 1,
                   .hint = "This operator's machine is a GPU. Check its driver (nvidia-smi or rocminfo; no older than "
                           "the runtime) and CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, or use exec::Host."});
    if (r.config.warp_num_per_block < 0 || r.config.warp_num_per_block > r.max_warps)
      return fail({.code = Errc::invalid_config,
                   .field = "warp_num_per_block",
                   .value = r.config.warp_num_per_block,
                   .limit = r.max_warps,
                   .hint = "Give 1 to the limit, or 0 for the machine's default."});
    int const most = std::min(r.max_blocks / launches_beside(records, rank), r.most_blocks);
    if (most < 1)
      return fail({.code = Errc::invalid_config,
                   .field = "ranks on one device",
                   .value = sharers_of(records, rank),
                   .limit = r.max_blocks / r.config.num_buffer_sets,
                   .hint = "Every rank and buffer set needs a block that stays resident: put fewer ranks on a device, "
                           "configure fewer warps per block, or, when the limit is 0, build for this device's "
                           "architecture."});
    if (r.config.block_num < 0 || r.config.block_num > most)
      return fail({.code = Errc::invalid_config,
                   .field = "block_num",
                   .value = r.config.block_num,
                   .limit = most,
                   .hint = "All blocks of a launch must be resident together, beside those of other ranks on the "
                           "device and of other buffer sets. Give 1 to the limit, or 0 for the machine's default."});
    // Only ranks that load and store shall reach must be on one host, and share memory.
    auto const is_near = [&](int peer) { return records[static_cast<std::size_t>(peer)].near_begin == r.near_begin; };
    const JoinRecord& nearest = records[static_cast<std::size_t>(r.near_begin)];
    if (r.host != nearest.host)
      return fail({.code = Errc::invalid_argument,
                   .peer = r.near_begin,
                   .field = "hosts",
                   .value = 2,
                   .limit = 1,
                   .hint = "This schedule's ranks reach each other's memory by load and store: start them on one host, "
                           "in one network namespace."});
    bool const apart = r.process != nearest.process;
    if (apart && r.shares_between_processes == 0)
      return fail({.code = Errc::invalid_argument,
                   .peer = r.near_begin,
                   .field = "processes",
                   .value = 2,
                   .limit = 1,
                   .hint =
                       "Memory of this machine (exec policy or device) is not shared between processes: make the ranks "
                       "threads of one (LocalWorld)."});
    for (int peer = 0; peer < world; ++peer)
      if (r.memory_given != 0 && r.memory_descriptor == 0 && is_near(peer) &&
          records[static_cast<std::size_t>(peer)].process != r.process)
        return fail({.code = Errc::invalid_argument,
                     .peer = peer,
                     .field = "descriptor of the caller's memory",
                     .value = 0,
                     .limit = 1,
                     .hint = "A peer in another process cannot reach it: give the descriptor by which it is mapped "
                             "(memory_fd), or let create() allocate the arena."});
    if (r.needed_bytes < 0)
      return fail(
          {.code = Errc::out_of_memory,
           .field = "footprint bytes",
           .value = r.needed_bytes,
           .hint = "The sizes overflow: lower max_num_inp_token_per_rank, hidden_dim, or set max_total_recv_tokens."});
    struct Field {
      const char* name;
      std::uint64_t value, limit;
    };
    for (const Field& field : {Field{"bytes of one put between nodes", r.carried.put, fabric::Command::kMostBytes},
                               Field{"arena bytes between nodes", r.carried.arena, fabric::Command::kReach},
                               Field{"signal bytes between nodes", r.carried.signals, fabric::Command::kSignalReach}})
      if (field.value > field.limit)
        return fail({.code = Errc::invalid_config,
                     .field = field.name,
                     .value = static_cast<std::int64_t>(field.value),
                     .limit = static_cast<std::int64_t>(field.limit),
                     .hint = "A command between nodes holds no more: lower max_num_inp_token_per_rank, hidden_dim or "
                             "rows_per_put, or set max_total_recv_tokens."});
    if (r.capturing != 0)
      return fail({.code = Errc::device_error,
                   .field = "stream capture",
                   .value = r.capturing,
                   .limit = 0,
                   .hint = "An operator allocates, which a capture forbids: create it before the capture begins. The "
                           "capture is void."});
    if (r.memory_given == 0 && r.needed_bytes > r.heap_limit - r.heap_used)
      return fail({.code = Errc::out_of_memory,
                   .field = "MORI_SHMEM_HEAP_SIZE",
                   .value = r.heap_limit,
                   .limit = r.heap_used + r.needed_bytes,
                   .hint = "This operator and those before it need a symmetric heap of the limit's bytes: raise "
                           "MORI_SHMEM_HEAP_SIZE to it, or unset it."});
    if (r.memory_bytes < r.needed_bytes && r.memory_given == 0)
      return fail({.code = Errc::out_of_memory,
                   .field = "arena bytes allocated",
                   .value = r.memory_bytes,
                   .limit = r.needed_bytes,
                   .hint =
                       "There is not as much memory, or a limit of the process forbids it (ulimit -v, -f, -n): free "
                       "some, lower max_num_inp_token_per_rank, or set max_total_recv_tokens."});
    if (r.memory_bytes < r.needed_bytes)
      return fail({.code = Errc::out_of_memory,
                   .field = "arena bytes",
                   .value = r.memory_bytes,
                   .limit = r.needed_bytes,
                   .hint = "Give at least footprint() bytes, or set max_total_recv_tokens."});
    for (int peer = 0; peer < world; ++peer) {
      // Another process numbers its devices as it likes: there the mapping of its memory tells.
      std::int32_t const ordinal = records[static_cast<std::size_t>(peer)].ordinal;
      bool const elsewhere = records[static_cast<std::size_t>(peer)].process != r.process;
      if (!is_near(peer) || (r.memory_shared != 0 && (elsewhere || ordinal >= 64 || (r.reachable >> ordinal & 1) != 0)))
        continue;
      return fail(
          {.code = Errc::invalid_argument,
           .peer = peer,
           .field = "peer access",
           .value = 0,
           .limit = 1,
           .hint = "This rank's device cannot reach the peer device's memory. Use devices linked to each other."});
    }
    if (r.memory_aligned == 0)
      return fail({.code = Errc::invalid_argument,
                   .field = "arena alignment",
                   .value = 0,
                   .limit = 256,
                   .hint = "Give memory that starts at a multiple of 256 bytes."});
  }
  return {};
}

}  // namespace mori_ep::schedule
