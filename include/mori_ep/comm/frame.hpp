// SPDX-License-Identifier: MIT
//! @file What processes say to each other while they join and meet: frames, written and read without trusting the
//!       other side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mori_ep/comm/bootstrap.hpp"
#include "mori_ep/comm/hash.hpp"
#include "mori_ep/comm/socket.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep::comm {

inline constexpr std::uint32_t kBootstrapVersion = 1;  //!< of the frames below; its place in a hello never moves

//! @brief A frame is a header and a payload. Numbers are little-endian.
enum class FrameKind : std::uint16_t {
  hello = 1,  //!< to rank 0 or, from a higher rank, to a peer: who I am
  table,      //!< from rank 0: where everybody listens
  refusal,    //!< from whoever was greeted: why not
  data,       //!< a round's bytes
  taken,      //!< a round's bytes are here
  broken      //!< a round that some did not reach: their ranks
};

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x3150454d;  // "MEP1"
  static constexpr std::size_t kBytes = 32;
  FrameKind kind = FrameKind::hello;
  std::uint64_t payload_bytes = 0;
  std::uint64_t group = 0;  //!< of a round: which members
  std::uint64_t round = 0;
};

//! @brief What stands for a group in its frames.
[[nodiscard]] inline std::uint64_t group_number(std::span<const int> members) noexcept {
  std::uint64_t hash = kHashStart;
  for (int m : members) hash = hash_number(static_cast<std::uint64_t>(m), hash);
  return hash;
}

//! @brief The most that a payload may have: an all-gather of more than a rank's metadata is a mistake.
inline constexpr std::uint64_t kMostPayload = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMostGreeting = std::uint64_t{1} << 20;  //!< of hello, table and refusal
//! @brief The most that a peer's frames may hold here before somebody takes them. A rank is in one round at a time, so
//!        one that keeps to the protocol stays far below.
inline constexpr std::uint64_t kMostHeld = 2 * kMostPayload;

//! @brief Appends numbers to bytes.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xffu));
    return *this;
  }
  ByteWriter& put(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

//! @brief Takes numbers from bytes; `ok()` is false once there were too few.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  template <class T>
  T take() noexcept {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return T{};
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(bytes_[i]) << (8 * i);
    bytes_ = bytes_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  template <std::size_t n>
  std::array<std::byte, n> take_bytes() noexcept {
    std::array<std::byte, n> out{};
    if (bytes_.size() < n) {
      ok_ = false;
      return out;
    }
    std::memcpy(out.data(), bytes_.data(), n);
    bytes_ = bytes_.subspan(n);
    return out;
  }
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_; }
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  //! @brief Everything was there and nothing is left.
  [[nodiscard]] bool done() const noexcept { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

[[nodiscard]] inline std::vector<std::byte> write_frame(FrameHeader header, std::span<const std::byte> payload) {
  ByteWriter out;
  out.put(FrameHeader::kMagic)
      .put(static_cast<std::uint16_t>(header.kind))
      .put(std::uint16_t{0})
      .put(static_cast<std::uint64_t>(payload.size()))
      .put(header.group)
      .put(header.round)
      .put(payload);
  return out.take();
}

//! @brief The header at the front of `bytes` (at least kBytes of them); nothing when it is no frame of ours.
[[nodiscard]] inline std::optional<FrameHeader> read_header(std::span<const std::byte> bytes) noexcept {
  ByteReader in(bytes);
  FrameHeader header;
  if (in.take<std::uint32_t>() != FrameHeader::kMagic) return {};
  auto const kind = in.take<std::uint16_t>();
  (void)in.take<std::uint16_t>();
  header.payload_bytes = in.take<std::uint64_t>();
  header.group = in.take<std::uint64_t>();
  header.round = in.take<std::uint64_t>();
  if (!in.ok() || kind < 1 || kind > static_cast<std::uint16_t>(FrameKind::broken)) return {};
  header.kind = static_cast<FrameKind>(kind);
  bool const greeting = header.kind <= FrameKind::refusal;
  if (header.payload_bytes > (greeting ? kMostGreeting : kMostPayload)) return {};
  return header;
}

using JobKey = std::array<std::byte, 16>;  //!< drawn by rank 0; who has it belongs to the job

inline void put_address(ByteWriter& out, const SocketAddress& address) {
  auto const bytes = address.bytes();
  out.put(static_cast<std::uint8_t>(address.family() == AF_INET ? 4 : 6))
      .put(std::uint8_t{0})
      .put(address.port())
      .put(address.scope())
      .put(std::span<const std::byte>(bytes));
}
[[nodiscard]] inline std::optional<SocketAddress> take_address(ByteReader& in) noexcept {
  auto const family = in.take<std::uint8_t>();
  (void)in.take<std::uint8_t>();
  auto const port = in.take<std::uint16_t>();
  auto const scope = in.take<std::uint32_t>();
  auto const bytes = in.take_bytes<16>();
  if (!in.ok() || (family != 4 && family != 6) || port == 0) return {};
  return SocketAddress::from(family == 4 ? AF_INET : AF_INET6, bytes.data(), port, scope);
}

struct Hello {
  std::uint32_t version = kBootstrapVersion;
  JobKey key{};
  std::int32_t rank = 0, world = 0;
  SocketAddress listens_at;  //!< to rank 0
};

[[nodiscard]] inline std::vector<std::byte> write_hello(const Hello& hello) {
  ByteWriter out;
  out.put(hello.version).put(std::span<const std::byte>(hello.key)).put(hello.rank).put(hello.world);
  put_address(out, hello.listens_at);
  return write_frame({.kind = FrameKind::hello}, out.take());
}
//! @brief Nothing when the payload is no hello; one of another version has no more than its version.
[[nodiscard]] inline std::optional<Hello> read_hello(std::span<const std::byte> payload) noexcept {
  ByteReader in(payload);
  Hello hello;
  hello.version = in.take<std::uint32_t>();
  if (in.ok() && hello.version != kBootstrapVersion) return hello;
  hello.key = in.take_bytes<16>();
  hello.rank = in.take<std::int32_t>();
  hello.world = in.take<std::int32_t>();
  auto const address = take_address(in);
  if (!in.done() || !address) return {};
  hello.listens_at = *address;
  return hello;
}

//! @brief Where everybody listens, by rank, and the job's key.
inline constexpr int kMostRanks = static_cast<int>((kMostGreeting - 20) / 24);  //!< that a table has room for
struct Table {
  JobKey key{};
  std::vector<SocketAddress> addresses;
};

[[nodiscard]] inline std::vector<std::byte> write_table(const Table& table) {
  ByteWriter out;
  out.put(std::span<const std::byte>(table.key)).put(static_cast<std::uint32_t>(table.addresses.size()));
  for (const SocketAddress& a : table.addresses) put_address(out, a);
  return write_frame({.kind = FrameKind::table}, out.take());
}
[[nodiscard]] inline std::optional<Table> read_table(std::span<const std::byte> payload) {
  ByteReader in(payload);
  Table table;
  table.key = in.take_bytes<16>();
  auto const count = in.take<std::uint32_t>();
  if (!in.ok() || in.rest().size() != std::size_t{count} * 24) return {};
  for (std::uint32_t i = 0; i < count; ++i) {
    auto const address = take_address(in);
    if (!address) return {};
    table.addresses.push_back(*address);
  }
  return table;
}

//! @brief Why a greeting was refused. The error is made where it is read, so that its texts are this side's own.
struct Refusal {
  enum class Reason : std::uint8_t { version = 1, key, world, rank, taken, missing };
  Reason reason = Reason::version;
  std::int64_t value = 0, limit = 0;
  std::vector<std::int32_t> missing;  //!< ranks that did not come

  [[nodiscard]] Error error(int rank) const {
    Error e{.code = Errc::protocol_mismatch, .phase = Phase::join, .rank = rank, .value = value, .limit = limit};
    switch (reason) {
      case Reason::version:
        e.field = "bootstrap version";
        e.hint = "All ranks must be built from the same version: rank 0's is the limit.";
        break;
      case Reason::key:
        e.field = "job key";
        e.value = 0;
        e.limit = Error::kNoLimit;
        e.hint =
            "Another job answers there: give every rank this job's unique id, or this job's name (TcpOptions::job).";
        break;
      case Reason::world:
        e.code = Errc::config_mismatch;
        e.field = "world";
        e.hint = "Every rank must be given rank 0's world, which is the limit.";
        break;
      case Reason::rank:
        e.code = Errc::invalid_argument;
        e.field = "rank";
        e.hint = "Ranks are 0 to world - 1.";
        break;
      case Reason::taken:
        e.code = Errc::config_mismatch;
        e.field = "rank that joins twice";
        e.limit = Error::kNoLimit;
        e.hint = "Give every process a rank of its own.";
        break;
      case Reason::missing:
        e.code = Errc::missing_rank;
        e.peer = missing.empty() ? -1 : missing.front();
        e.hint = "They did not join in time. Were they started, and can they reach rank 0?";
        return e.with_text(list_of(std::vector<int>(missing.begin(), missing.end())));
    }
    return e;
  }
};

[[nodiscard]] inline std::vector<std::byte> write_refusal(const Refusal& refusal) {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(refusal.reason)).put(refusal.value).put(refusal.limit);
  for (std::int32_t rank : refusal.missing) out.put(rank);
  return write_frame({.kind = FrameKind::refusal}, out.take());
}
[[nodiscard]] inline std::optional<Refusal> read_refusal(std::span<const std::byte> payload) {
  ByteReader in(payload);
  Refusal refusal;
  auto const reason = in.take<std::uint8_t>();
  refusal.value = in.take<std::int64_t>();
  refusal.limit = in.take<std::int64_t>();
  if (!in.ok() || reason < 1 || reason > static_cast<std::uint8_t>(Refusal::Reason::missing) ||
      in.rest().size() % sizeof(std::int32_t) != 0)
    return {};
  refusal.reason = static_cast<Refusal::Reason>(reason);
  while (!in.rest().empty()) refusal.missing.push_back(in.take<std::int32_t>());
  return refusal;
}

//! @brief The ranks in a `broken` frame; nothing when they are none of the world's.
[[nodiscard]] inline std::optional<std::vector<int>> read_broken(std::span<const std::byte> payload, int world) {
  if (payload.size() % sizeof(std::int32_t) != 0) return {};
  ByteReader in(payload);
  std::vector<int> ranks;
  while (!in.rest().empty()) {
    auto const rank = in.take<std::int32_t>();
    if (rank < 0 || rank >= world) return {};
    ranks.push_back(rank);
  }
  return ranks;
}

//! @brief Takes whole frames from a stream of bytes. What a header announces takes memory only when it arrives.
class FrameReader {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  //! @brief Adds what a socket gave; false when it is no stream of ours, for good.
  [[nodiscard]] bool add(std::span<const std::byte> bytes) {
    if (!sound_) return false;
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    while (bytes_.size() - at_ >= FrameHeader::kBytes) {
      auto const header = read_header(std::span<const std::byte>(bytes_).subspan(at_));
      sound_ = header.has_value();
      if (!sound_ || bytes_.size() - at_ - FrameHeader::kBytes < header->payload_bytes) break;
      auto const begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at_ + FrameHeader::kBytes);
      frames_.push_back({*header, {begin, begin + static_cast<std::ptrdiff_t>(header->payload_bytes)}});
      in_frames_ += cost(frames_.back());
      at_ += FrameHeader::kBytes + static_cast<std::size_t>(header->payload_bytes);
    }
    if (at_ == bytes_.size() || at_ > 65536) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
      at_ = 0;
    }
    return sound_;
  }
  //! @brief Whole frames that nobody has taken, in order.
  [[nodiscard]] const std::vector<Frame>& frames() const noexcept { return frames_; }
  //! @brief Shows every frame to `done`, in order, and drops those for which it says true.
  template <class Done>
  void take(Done&& done) {
    std::size_t kept = 0;
    for (Frame& frame : frames_) {
      std::uint64_t const bytes = cost(frame);
      if (done(static_cast<const Frame&>(frame))) {
        in_frames_ -= bytes;
        continue;
      }
      if (&frames_[kept] != &frame) frames_[kept] = std::move(frame);
      ++kept;
    }
    frames_.resize(kept);
  }
  //! @brief The oldest frame, if there is one.
  [[nodiscard]] std::optional<Frame> pop() {
    if (frames_.empty()) return {};
    in_frames_ -= cost(frames_.front());
    Frame frame = std::move(frames_.front());
    frames_.erase(frames_.begin());
    return frame;
  }
  //! @brief Bytes of memory: of frames that nobody has taken, and of what is no frame yet.
  [[nodiscard]] std::uint64_t held() const noexcept { return in_frames_ + (bytes_.size() - at_); }

 private:
  static std::uint64_t cost(const Frame& frame) noexcept { return sizeof(Frame) + frame.payload.size(); }

  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
  bool sound_ = true;
  std::vector<Frame> frames_;
  std::uint64_t in_frames_ = 0;
};

}  // namespace mori_ep::comm
