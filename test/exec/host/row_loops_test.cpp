// SPDX-License-Identifier: MIT
// Every width that this machine has gives the bits of the 16-byte loops: NaN, infinities and denormals, odd sizes and
// addresses included.
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/exec/host/rows.hpp"
#include "support/catch.hpp"
#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {
namespace {

using exec::host::RowVectors;
using exec::host::Span;

std::vector<RowVectors> wider() {
  std::vector<RowVectors> out;
  if (exec::host::widest_row_vectors() >= RowVectors::bytes32) out.push_back(RowVectors::bytes32);
  if (exec::host::widest_row_vectors() >= RowVectors::bytes64) out.push_back(RowVectors::bytes64);
  return out;
}

const std::vector<std::size_t>& row_sizes() {
  static const std::vector<std::size_t> sizes = [] {
    std::vector<std::size_t> s;
    for (std::size_t bytes = 16; bytes <= 336; bytes += 16) s.push_back(bytes);
    for (std::size_t bytes : {1040u, 2000u, 5760u, 14336u}) s.push_back(bytes);
    return s;
  }();
  return sizes;
}

//! Bits as they come, every fourth element one of the special ones.
std::uint32_t random_bits(oracle::Format format, Rng& rng) {
  auto bits = static_cast<std::uint32_t>(rng.next());
  if (format == oracle::Format::fp32 && rng.one_in(4)) {
    constexpr std::uint32_t kSpecial[] = {0,           0x80000000u, 1,           0x807fffffu, 0x7f800000u,
                                          0xff800000u, 0x7f800001u, 0xffc12345u, 0x7f7fffffu, 0x00800000u};
    return kSpecial[bits % std::size(kSpecial)];
  }
  if (format == oracle::Format::fp32) return bits;
  bits &= 0xffffu;
  std::uint32_t const exponent = format == oracle::Format::bf16 ? 0x7f80u : 0x7c00u;
  if (rng.one_in(8)) bits &= ~exponent;  // zeros and denormals
  if (rng.one_in(8)) bits |= exponent;   // NaN
  if (rng.one_in(8)) bits = (bits & 0x8000u) | exponent;
  return bits;
}

//! A row `shift` bytes behind a multiple of 256.
struct ShiftedRow {
  ShiftedRow(std::size_t bytes, std::size_t shift) : memory(shift + bytes), at(memory.data() + shift) {}
  Guarded memory;
  std::byte* at;
};

template <class T, bool Weighted, bool Streaming>
std::string compare(oracle::Format format, RowVectors vectors, Rng& rng) {
  for (std::size_t bytes : row_sizes())
    for (int n : {1, 2, 3, 5, 8, 32}) {
      if (n > 8 && bytes > 336) continue;
      std::size_t const elements = bytes / sizeof(T);
      std::vector<ShiftedRow> sources;
      std::vector<const std::byte*> pointers;
      std::vector<float> factors;
      for (int i = 0; i < n; ++i) {
        ShiftedRow row(bytes, static_cast<std::size_t>(rng.in(0, 15)) * 16);
        for (std::size_t e = 0; e < elements; ++e) oracle::store(format, row.at, e, random_bits(format, rng));
        pointers.push_back(row.at);
        sources.push_back(std::move(row));
        factors.push_back(static_cast<float>(static_cast<std::int64_t>(rng.next())) * 0x1p-62f);
      }
      // All in one group, each row its own group, or groups as they come.
      std::uint32_t const groups = rng.one_in(3) ? 0 : rng.one_in(3) ? ~0u : static_cast<std::uint32_t>(rng.next());
      std::size_t const shift = static_cast<std::size_t>(rng.in(0, 15)) * 16;
      ShiftedRow want(bytes, shift), got(bytes, shift);
      auto const run = [&](ShiftedRow& to, Span span, RowVectors with) {
        exec::host::reduce_rows<T, Weighted, Streaming>(pointers.data(), factors.data(), n, groups, to.at, span, with);
      };
      run(want, {0, bytes}, RowVectors::bytes16);
      int const parts = rng.in(1, 3);
      for (int part = 0; part < parts; ++part) run(got, Span::part(bytes, part, parts), vectors);
      exec::host::fence_streaming();
      std::string const what = std::to_string(n) + " rows of " + std::to_string(bytes) + " bytes to " +
                               std::to_string(shift) + ", groups " + std::to_string(groups);
      if (!want.memory.intact() || !got.memory.intact()) return "canary: " + what;
      if (!Guarded::all(got.memory.data(), shift, Guarded::kFill)) return "before the row: " + what;
      for (std::size_t e = 0; e < elements; ++e) {
        std::uint32_t const a = oracle::load(format, want.at, e), b = oracle::load(format, got.at, e);
        int nans = 0;
        for (auto const* p : pointers) nans += std::isnan(oracle::decode(format, oracle::load(format, p, e))) ? 1 : 0;
        // Where two NaNs meet, and infinities make some on the way, the machine may keep either.
        bool const any_nan = (n > 2 || nans == 2) && std::isnan(oracle::decode(format, a));
        if (a != b && !(any_nan && std::isnan(oracle::decode(format, b))))
          return what + ", element " + std::to_string(e) + ": " + std::to_string(b) + " instead of " +
                 std::to_string(a);
      }
    }
  return {};
}

template <class T>
std::string compare_all(oracle::Format format, RowVectors vectors, Rng& rng) {
  std::string wrong = compare<T, false, false>(format, vectors, rng);
  if (wrong.empty()) wrong = compare<T, false, true>(format, vectors, rng);
  if (wrong.empty()) wrong = compare<T, true, false>(format, vectors, rng);
  if (wrong.empty()) wrong = compare<T, true, true>(format, vectors, rng);
  return wrong;
}

//! Every 16-bit code alone, and each with the next: all NaNs, denormals and infinities, and a rounding.
template <class T>
std::vector<std::uint16_t> all_codes(RowVectors vectors, int n) {
  std::vector<std::uint16_t> first(65536), second(65536), out(65536);
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<std::uint16_t>(i);
    second[i] = static_cast<std::uint16_t>((i * 40503u) & 0xbfffu & ~0x7000u);  // small and finite: the first decides
  }
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(first.data()),
                                reinterpret_cast<const std::byte*>(second.data())};
  exec::host::reduce_rows<T, false, false>(sources, nullptr, n, 0, reinterpret_cast<std::byte*>(out.data()),
                                           Span{0, 2 * 65536}, vectors);
  return out;
}

}  // namespace

TEST_CASE("every width of vectors gives the same sums") {
  for (RowVectors vectors : wider()) {
    INFO("width " << (vectors == RowVectors::bytes32 ? 32 : 64));
    Rng rng(11);
    REQUIRE(compare_all<bf16>(oracle::Format::bf16, vectors, rng) == "");
    REQUIRE(compare_all<fp16>(oracle::Format::fp16, vectors, rng) == "");
    REQUIRE(compare_all<float>(oracle::Format::fp32, vectors, rng) == "");
  }
}

TEST_CASE("every width of vectors treats every 16-bit code alike") {
  for (RowVectors vectors : wider())
    for (int n : {1, 2}) {
      INFO("width " << (vectors == RowVectors::bytes32 ? 32 : 64) << ", " << n << " rows");
      REQUIRE(all_codes<bf16>(vectors, n) == all_codes<bf16>(RowVectors::bytes16, n));
      REQUIRE(all_codes<fp16>(vectors, n) == all_codes<fp16>(RowVectors::bytes16, n));
    }
}

TEST_CASE("products are rounded before they are added, at every width") {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: the last bit is lost to rounding, and a fused multiply-add would keep it.
  std::vector<float> const one(64, 1.0f + 0x1p-12f), minus(64, -(1.0f + 0x1p-11f));
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(minus.data()),
                                reinterpret_cast<const std::byte*>(one.data())};
  float const weights[] = {1.0f, 1.0f + 0x1p-12f};
  std::vector<RowVectors> widths = wider();
  widths.push_back(RowVectors::bytes16);
  for (RowVectors vectors : widths) {
    std::vector<float> out(64, 1);
    exec::host::reduce_rows<float, true, false>(sources, weights, 2, 0, reinterpret_cast<std::byte*>(out.data()),
                                                Span{0, 256}, vectors);
    REQUIRE(out == std::vector<float>(64, 0));
  }
}

}  // namespace mori_ep::test
