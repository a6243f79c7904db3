// SPDX-License-Identifier: MIT
//! @file Loopback endpoints of all ranks of a world, in the hands of one test.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/fabric/loopback.hpp"

namespace mori_ep::test {

//! @brief Arenas are zeroed. `also`: something that the first arena's owner keeps alive.
template <class F>
class FabricWorld {
 public:
  using End = F;

  FabricWorld(int world, std::size_t bytes, const fabric::LoopbackOptions& options,
              std::shared_ptr<const void> also = nullptr)
      : ends_(static_cast<std::size_t>(world)), bases_(ends_.size()) {
    comm::LocalWorld(world)
        .run([&](comm::Communicator& comm) -> Status {
          struct Kept {
            explicit Kept(std::size_t bytes) : arena(bytes, comm::Place::device) {}
            comm::Arena<exec::Host> arena;
            std::shared_ptr<const void> also;
          };
          auto const r = static_cast<std::size_t>(comm.rank());
          auto kept = std::make_shared<Kept>(bytes);
          if (r == 0) kept->also = std::move(also);
          bases_[r] = kept->arena.data();
          auto end = End::connect(comm, std::span(bases_[r], bytes), {}, std::move(kept), options);
          if (!end.ok()) return end.status();
          ends_[r].emplace(std::move(*end));
          return {};
        })
        .or_throw();
  }

  [[nodiscard]] End& end(int rank) noexcept { return *ends_[static_cast<std::size_t>(rank)]; }
  void drop(int rank) noexcept { ends_[static_cast<std::size_t>(rank)].reset(); }
  [[nodiscard]] std::byte* arena(int rank) const noexcept { return bases_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::uint64_t& word_at(int rank, std::uint64_t offset) const noexcept {
    return *reinterpret_cast<std::uint64_t*>(arena(rank) + offset);
  }
  [[nodiscard]] std::uint64_t word(int rank, std::uint64_t offset) const noexcept {
    return std::atomic_ref<std::uint64_t>(word_at(rank, offset)).load(std::memory_order_acquire);
  }

 private:
  std::vector<std::optional<End>> ends_;
  std::vector<std::byte*> bases_;
};
template <fabric::Order Promise>
using LoopbackWorld = FabricWorld<fabric::Loopback<Promise>>;

}  // namespace mori_ep::test
