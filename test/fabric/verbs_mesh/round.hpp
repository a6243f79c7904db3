// SPDX-License-Identifier: MIT
//! @file What one rank sends another in a round of verbs_mesh: both ends work it out from the seed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mori_ep/exec/signal_word.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

//! @brief Where things lie in a rank's arena, in bytes. All ranks have the same.
struct MeshLayout {
  static constexpr std::size_t kWords = 128;  //!< of each peer: one for each queue pair, then those named here
  static constexpr std::size_t kAck = 64, kProbe = 65;

  int world;
  std::size_t room;  //!< of one round

  [[nodiscard]] std::size_t word(int peer, std::size_t i) const {
    return (static_cast<std::size_t>(peer) * kWords + i) * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::size_t out(int peer) const { return word(world, 0) + static_cast<std::size_t>(peer) * room; }
  [[nodiscard]] std::size_t in(int peer) const { return out(world + peer); }
  [[nodiscard]] std::size_t bytes() const { return out(2 * world); }
};

//! @brief Bytes that no other run has.
inline void fill_run(std::byte* at, std::size_t bytes, std::uint64_t seed) {
  Rng rng(seed);
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t const word = rng.next();
    std::memcpy(at + i, &word, std::min(sizeof(word), bytes - i));
  }
}

struct MeshRound {
  static constexpr std::byte kEmpty{0xee};
  static constexpr std::size_t kGaps = 2048;  //!< of the room, more than all gaps between runs

  struct Run {
    std::size_t offset, bytes;  //!< in the round's room
    std::uint64_t seed;
  };
  struct Signal {
    std::size_t queue_pair;
    std::uint64_t word;
  };
  std::vector<Run> runs;
  std::vector<Signal> signals;
  std::vector<fabric::WorkRequest> requests;  //!< without peer and sequence

  //! @param most bytes of a run, but for what is left of the room
  MeshRound(const MeshLayout& layout, std::uint64_t seed, int from, int to, std::uint32_t number, int queue_pairs,
            int most) {
    using fabric::Operation;
    Rng rng(mix(seed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), number));
    std::size_t at = static_cast<std::size_t>(rng.in(0, 15));
    int const first = rng.in(0, queue_pairs - 1), used = rng.in(1, std::min(queue_pairs, 3));
    for (int i = 0; i < used; ++i) {
      auto const queue_pair = static_cast<std::uint8_t>((first + i) % queue_pairs);
      std::uint32_t sent = 0;
      int const count = rng.one_in(16) ? rng.in(20, 40) : rng.in(0, 4);
      fabric::WorkRequest request{.id = {.operation = Operation::put, .queue_pair = queue_pair, .epoch = number}};
      for (int k = 0; k < count; ++k) {
        auto bytes = static_cast<std::size_t>(rng.one_in(8) ? rng.in(0, most) : rng.in(0, std::min(most, 700)));
        bytes = std::min(bytes, at < layout.room - kGaps ? (layout.room - kGaps - at) / 2 : 0);
        runs.push_back({at, bytes, rng.next()});
        request.local_offset = layout.out(to) + at;
        request.remote_offset = layout.in(from) + at;
        request.bytes = bytes;
        at += bytes + static_cast<std::size_t>(rng.in(0, 9));
        sent += static_cast<std::uint32_t>(bytes);
        if (k + 1 < count) requests.push_back(request);
      }
      // The last run takes the signal along, or goes before it.
      bool const together = rng.one_in(2);
      if (count > 0 && !together) requests.push_back(request);
      request.id.operation = count > 0 && together ? Operation::put_signal : Operation::signal;
      request.signal_offset = layout.word(from, queue_pair);
      request.signal = exec::signal_word(number, sent);
      requests.push_back(request);
      signals.push_back({queue_pair, request.signal});
    }
    end_ = at;
  }

  //! @brief Writes what is to be sent; `room` is where the round's begins.
  void fill(std::byte* room) const {
    for (const Run& run : runs) fill_run(room + run.offset, run.bytes, run.seed);
  }
  //! @brief Is all that was sent there, and nothing beside it? Empties the room.
  //! @return bytes that are wrong
  [[nodiscard]] std::size_t take(std::byte* room) const {
    std::size_t wrong = 0;
    std::vector<std::byte> expected;
    for (const Run& run : runs) {
      expected.resize(run.bytes);
      fill_run(expected.data(), run.bytes, run.seed);
      if (run.bytes != 0 && std::memcmp(room + run.offset, expected.data(), run.bytes) != 0) wrong += run.bytes;
      std::fill_n(room + run.offset, run.bytes, kEmpty);
    }
    wrong += static_cast<std::size_t>(std::count_if(room, room + end_, [](std::byte b) { return b != kEmpty; }));
    return wrong;
  }

 private:
  std::size_t end_;
};

}  // namespace mori_ep::test
