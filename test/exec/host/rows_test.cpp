// SPDX-License-Identifier: MIT
// The row primitives against plain loops, for every element type and row size, plain and streaming.
#include <string>
#include <vector>

#include "mori_ep/exec/host/rows.hpp"
#include "support/catch.hpp"
#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {
namespace {

using exec::host::fence_streaming;

const std::vector<std::size_t>& row_sizes() {
  static const std::vector<std::size_t> sizes = [] {
    std::vector<std::size_t> s;
    for (std::size_t bytes = 16; bytes <= 512; bytes += 16) s.push_back(bytes);
    for (std::size_t bytes : {1008u, 1024u, 1040u, 2880u, 4096u, 5760u, 7168u, 14336u, 16368u, 16384u})
      s.push_back(bytes);
    return s;
  }();
  return sizes;
}

Guarded random_row(std::size_t bytes, Rng& rng) {
  Guarded row(bytes);
  for (std::size_t i = 0; i < bytes; ++i) row.data()[i] = static_cast<std::byte>(rng.next());
  return row;
}

template <bool Streaming>
std::string multicast(Rng& rng) {
  for (std::size_t bytes : row_sizes())
    for (int n : {0, 1, 2, 3, 5, 8, 32}) {
      if (n > 8 && bytes > 1024) continue;
      Guarded const source = random_row(bytes, rng);
      std::vector<std::byte> const copy(source.data(), source.data() + bytes);
      std::vector<Guarded> targets;
      std::vector<std::byte*> pointers;
      for (int i = 0; i < n; ++i) pointers.push_back(targets.emplace_back(bytes).data());
      exec::host::multicast_row<Streaming>(source.data(), pointers.data(), n, exec::host::Span{0, bytes});
      fence_streaming();
      for (const Guarded& t : targets)
        if (!t.intact() || !t.holds(copy.data())) return "multicast of " + std::to_string(bytes) + " bytes";
      if (!source.intact() || !source.holds(copy.data())) return "source changed";
    }
  return {};
}

template <class T, bool Weighted, bool Streaming>
std::string reduce(oracle::Format format, Rng& rng) {
  for (std::size_t bytes : row_sizes())
    for (int n : {1, 2, 3, 8, 32}) {
      if (n > 8 && bytes > 1024) continue;
      std::size_t const elements = bytes / sizeof(T);
      std::vector<Guarded> sources;
      std::vector<const std::byte*> pointers;
      std::vector<float> factors;
      for (int i = 0; i < n; ++i) {
        Guarded row(bytes);
        for (std::size_t e = 0; e < elements; ++e) {
          // Bits as they come, but neither infinity nor NaN: zeros, denormals and large values are all there.
          auto bits = static_cast<std::uint32_t>(rng.next());
          if (format != oracle::Format::fp32) bits &= 0xffffu;
          if (!std::isfinite(oracle::decode(format, bits)) || (format != oracle::Format::fp16 && rng.one_in(2)))
            bits = oracle::encode(format, static_cast<double>(static_cast<std::int64_t>(rng.next())) * 0x1p-62);
          oracle::store(format, row.data(), e, bits);
        }
        sources.push_back(std::move(row));
        pointers.push_back(sources.back().data());
        factors.push_back(static_cast<float>(static_cast<std::int64_t>(rng.next())) * 0x1p-62f);
      }
      std::uint32_t const groups = rng.one_in(2) ? 0 : static_cast<std::uint32_t>(rng.next());
      Guarded out(bytes);
      exec::host::reduce_rows<T, Weighted, Streaming>(pointers.data(), factors.data(), n, groups, out.data(),
                                                      exec::host::Span{0, elements * sizeof(T)});
      fence_streaming();
      if (!out.intact()) return "canary, " + std::to_string(bytes) + " bytes";
      for (std::size_t e = 0; e < elements; ++e) {
        oracle::GroupedSum sum;
        int group = 0;
        for (int i = 0; i < n; ++i) {
          if (i > 0 && ((groups >> i) & 1u) != 0) ++group;
          auto const value = static_cast<float>(
              oracle::decode(format, oracle::load(format, pointers[static_cast<std::size_t>(i)], e)));
          sum.term(group, Weighted ? oracle::multiply(value, factors[static_cast<std::size_t>(i)]) : value);
        }
        std::uint32_t const got = oracle::load(format, out.data(), e),
                            want = oracle::encode(format, static_cast<double>(sum.value()));
        // Overflow on the way may make infinities of both signs, and then a NaN whose bits nobody promises.
        if (got != want && !(std::isnan(sum.value()) && std::isnan(oracle::decode(format, got))))
          return "sum of " + std::to_string(n) + " rows of " + std::to_string(bytes) + " bytes, element " +
                 std::to_string(e) + ": " + std::to_string(got) + " instead of " + std::to_string(want);
      }
    }
  return {};
}

template <class T>
std::string reduce_all(oracle::Format format, Rng& rng) {
  std::string wrong = reduce<T, false, false>(format, rng);
  if (wrong.empty()) wrong = reduce<T, false, true>(format, rng);
  if (wrong.empty()) wrong = reduce<T, true, false>(format, rng);
  if (wrong.empty()) wrong = reduce<T, true, true>(format, rng);
  return wrong;
}

}  // namespace

TEST_CASE("multicast_row copies a row to each destination and no further") {
  Rng rng(3);
  REQUIRE(multicast<false>(rng) == "");
  REQUIRE(multicast<true>(rng) == "");
}

TEST_CASE("reduce_rows adds in fp32 in the order given and rounds once") {
  Rng rng(4);
  REQUIRE(reduce_all<bf16>(oracle::Format::bf16, rng) == "");
  REQUIRE(reduce_all<fp16>(oracle::Format::fp16, rng) == "");
  REQUIRE(reduce_all<float>(oracle::Format::fp32, rng) == "");
}

TEST_CASE("one row reduces to itself, whatever its bits") {
  // All 16-bit codes, so that NaNs stay NaN and infinities stay.
  std::vector<std::uint16_t> codes(65536), out(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  auto const* source = reinterpret_cast<const std::byte*>(codes.data());
  int wrong = 0;
  exec::host::reduce_rows<bf16, false, false>(&source, nullptr, 1, 0, reinterpret_cast<std::byte*>(out.data()),
                                              exec::host::Span{0, 2 * 65536});
  for (std::uint32_t i = 0; i < 65536; ++i)
    wrong += out[i] == i || ((i & 0x7fffu) > 0x7f80u && out[i] == (i | 0x40u)) ? 0 : 1;
  exec::host::reduce_rows<fp16, false, false>(&source, nullptr, 1, 0, reinterpret_cast<std::byte*>(out.data()),
                                              exec::host::Span{0, 2 * 65536});
  for (std::uint32_t i = 0; i < 65536; ++i)
    wrong += out[i] == i || ((i & 0x7fffu) > 0x7c00u && out[i] == (i | 0x200u)) ? 0 : 1;
  REQUIRE(wrong == 0);
}

TEST_CASE("zero_row is zeros and nothing else") {
  for (std::size_t bytes : row_sizes()) {
    Guarded row(bytes);
    exec::host::zero_row<false>(row.data(), exec::host::Span{0, bytes});
    REQUIRE((row.intact() && Guarded::all(row.data(), bytes, std::byte{0})));
    Guarded streamed(bytes);
    exec::host::zero_row<true>(streamed.data(), exec::host::Span{0, bytes});
    fence_streaming();
    REQUIRE((streamed.intact() && Guarded::all(streamed.data(), bytes, std::byte{0})));
  }
}

}  // namespace mori_ep::test
