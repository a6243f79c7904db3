// SPDX-License-Identifier: MIT
// Coded rows on the host: every width gives the codes and the sums that the scalar conversions give, wherever a row's parts
// begin and whatever lies around it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mori_ep/exec/host/rows.hpp"
#include "support/catch.hpp"
#include "support/guarded.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

namespace {

using exec::host::RowVectors;

//! Also rows whose scales are next to the least and the largest.
template <class T>
std::vector<T> row_of(std::size_t n, Rng& rng) {
  std::vector<T> row(n);
  int const exponent = std::is_same_v<T, fp16> || rng.one_in(2) ? 0 : rng.one_in(2) ? -126 : 113;
  for (T& v : row) {
    float x = std::ldexp(static_cast<float>(rng.in(-4000, 4000)) / 1000.0f, exponent + rng.in(-12, 12));
    if (rng.one_in(9)) x = 0;
    if (rng.one_in(11)) x = -0.0f;
    if (rng.one_in(400)) x = std::numeric_limits<float>::infinity();
    if (rng.one_in(400)) x = std::numeric_limits<float>::quiet_NaN();
    v = T(x);
  }
  return row;
}

//! A row by the scalar conversions.
template <class R>
std::vector<std::byte> coded(const std::vector<typename R::ElementType>& row) {
  using C = typename R::CodeType;
  std::vector<std::byte> out(R::row_bytes(row.size()));
  std::size_t const block = R::kScaled ? static_cast<std::size_t>(R::kBlock) : 1;
  auto const put = [&](std::size_t i, float low, [[maybe_unused]] float high) {
    if constexpr (R::Traits::kElements == 2)
      out[i / 2] = std::byte{C(low, high).bits};
    else
      out[i] = std::byte{C(low).bits};
  };
  for (std::size_t begin = 0; begin < row.size(); begin += block) {
    std::size_t const end = std::min(row.size(), begin + block);
    float factor = 1;
    if constexpr (R::kScaled) {
      std::uint32_t largest = 0;
      for (std::size_t i = begin; i < end; ++i)
        largest = std::max(largest, numeric::float_bits(static_cast<float>(row[i])) & 0x7fffffffu);
      auto const scale = R::scale_of(largest);
      factor = R::factor_of(scale);
      std::memcpy(out.data() + R::payload_bytes(row.size()) + begin / block * sizeof(scale), &scale, sizeof(scale));
    }
    for (std::size_t i = begin; i < end; i += static_cast<std::size_t>(R::Traits::kElements)) {
      auto const value = [&](std::size_t at) {
        float const x = static_cast<float>(row[std::min(at, end - 1)]) * factor;
        return R::kScaled || std::isfinite(x) ? x : std::numeric_limits<float>::quiet_NaN();
      };
      put(i, value(i), value(i + 1));
    }
  }
  return out;
}

template <class R>
float decoded(const std::vector<std::byte>& row, std::size_t hidden, std::size_t i) {
  using C = typename R::CodeType;
  float value;
  if constexpr (R::Traits::kElements == 2) {
    C const pair = C::from_bits(static_cast<std::uint8_t>(row[i / 2]));
    value = i % 2 == 0 ? pair.low() : pair.high();
  } else {
    value = static_cast<float>(C::from_bits(static_cast<std::uint8_t>(row[i])));
  }
  if constexpr (R::kScaled) {
    typename R::ScaleType scale;
    std::memcpy(&scale, row.data() + R::payload_bytes(hidden) + i / static_cast<std::size_t>(R::kBlock) * sizeof(scale),
                sizeof(scale));
    value = static_cast<float>(static_cast<double>(value) * static_cast<double>(static_cast<float>(scale)));
  }
  return value;
}

//! Codes of blocks with a NaN scale mean nothing.
template <class R>
bool same_codes(const std::vector<std::byte>& a, const std::byte* b, std::size_t hidden) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t const element = i * static_cast<std::size_t>(R::Traits::kElements);
    bool const lost = element < hidden && std::isnan(decoded<R>(a, hidden, element));
    if (a[i] != b[i] && !lost) return false;
  }
  return true;
}

template <class R, bool Weighted>
void check(std::uint64_t seed) {
  using T = typename R::ElementType;
  Rng rng(seed);
  std::size_t const hidden = static_cast<std::size_t>(R::kUnit * (rng.one_in(3) ? rng.in(1, 70) : rng.in(1, 12)));
  int const n = rng.in(1, 9), parts = rng.in(1, 4), copies = rng.in(1, 3);
  std::uint32_t const groups = rng.one_in(2) ? 1u : static_cast<std::uint32_t>(rng.next());
  std::vector<std::vector<std::byte>> rows;
  std::vector<float> weights;
  for (int i = 0; i < n; ++i) {
    rows.push_back(coded<R>(row_of<T>(hidden, rng)));
    weights.push_back(static_cast<float>(rng.in(-9, 9)) / 4);
  }
  auto const input = row_of<T>(hidden, rng);
  auto const want = coded<R>(input);
  std::size_t const shift = static_cast<std::size_t>(rng.in(0, 7)) * 16;
  for (RowVectors with : {RowVectors::bytes16, RowVectors::bytes32, RowVectors::bytes64}) {
    if (with > exec::host::widest_row_vectors()) continue;
    INFO("seed " << seed << " hidden " << hidden << " rows " << n << " parts " << parts << " vectors " << int(with));
    {
      Guarded memory(static_cast<std::size_t>(copies), R::row_bytes(hidden), R::row_bytes(hidden) + 64);
      std::vector<std::byte*> payloads, scales;
      for (int c = 0; c < copies; ++c) {
        payloads.push_back(memory.row(static_cast<std::size_t>(c)));
        scales.push_back(payloads.back() + R::payload_bytes(hidden));
        std::fill_n(payloads.back(), R::row_bytes(hidden), std::byte{});
      }
      for (int part = 0; part < parts; ++part)
        exec::host::encode_row<R, true>(reinterpret_cast<const std::byte*>(input.data()), payloads.data(),
                                        scales.data(), copies, hidden, part, parts, with);
      exec::host::fence_streaming();
      for (int c = 0; c < copies; ++c) REQUIRE(same_codes<R>(want, memory.row(static_cast<std::size_t>(c)), hidden));
      REQUIRE(memory.intact());
    }
    Guarded memory(1, shift + hidden * sizeof(T), shift + hidden * sizeof(T));
    std::byte* const out = memory.data() + shift;
    std::vector<const std::byte*> sources;
    for (auto const& row : rows) sources.push_back(row.data());
    for (int part = 0; part < parts; ++part)
      exec::host::reduce_rows<R, Weighted, true>(sources.data(), weights.data(), n, groups, out, hidden, part, parts,
                                                 with);
    exec::host::fence_streaming();
    REQUIRE(memory.intact());
    for (std::size_t h = 0; h < hidden; ++h) {
      float total = 0, group = 0;
      bool closed = false;
      for (int i = 0; i < n; ++i) {
        auto const at = static_cast<std::size_t>(i);
        double term = static_cast<double>(decoded<R>(rows[at], hidden, h));
        if (Weighted) term = static_cast<double>(static_cast<float>(term * static_cast<double>(weights[at])));
        if (i != 0 && ((groups >> i) & 1u) != 0) {
          total = closed ? total + group : group;
          closed = true;
          group = static_cast<float>(term);
        } else {
          group = i == 0 ? static_cast<float>(term) : static_cast<float>(static_cast<double>(group) + term);
        }
      }
      T const sum(closed ? total + group : group);
      T got;
      std::memcpy(&got, out + h * sizeof(T), sizeof(T));
      bool const same = std::memcmp(&got, &sum, sizeof(T)) == 0 ||
                        (std::isnan(static_cast<float>(got)) && std::isnan(static_cast<float>(sum)));
      INFO("element " << h << " is " << static_cast<float>(got) << ", not " << static_cast<float>(sum));
      REQUIRE(same);
    }
  }
}

template <class R>
void check_all() {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(scaled(60, 12)); ++seed) {
    check<R, false>(seed);
    check<R, true>(seed + 1000);
  }
}

}  // namespace

TEST_CASE("fp8 by blocks of any length, of every element") {
  check_all<CodedRow<bf16, fp8_e4m3, 128>>();
  check_all<CodedRow<fp16, fp8_e5m2, 16>>();
  check_all<CodedRow<float, fp8_e4m3_fnuz, 512>>();
  check_all<CodedRow<bf16, fp8_e4m3, 32, e8m0>>();
  check_all<CodedRow<bf16, fp8_e4m3, 16>>();
  check_all<CodedRow<bf16, fp8_e4m3_fnuz, 16, e8m0>>();
  check_all<CodedRow<float, fp8_e5m2, 64, e8m0>>();
}
TEST_CASE("fp4 by blocks") {
  check_all<CodedRow<bf16, fp4x2_e2m1, 32>>();
  check_all<CodedRow<float, fp4x2_e2m1, 64, e8m0>>();
}
TEST_CASE("casts") {
  check_all<CodedRow<bf16, fp8_e4m3, 0>>();
  check_all<CodedRow<fp16, fp8_e4m3_fnuz, 0>>();
  check_all<CodedRow<float, fp8_e5m2, 0>>();
}

namespace {

//! Relative error in the L2 norm of rows of `draw` that went through R.
template <class R, class Draw>
double relative_error(Draw&& draw) {
  std::mt19937_64 generator(11);
  double errors = 0, norms = 0;
  for (int row = 0; row < 50; ++row) {
    std::vector<bf16> x(7168), y(7168);
    for (bf16& v : x) v = bf16(draw(generator));
    auto const wire = coded<R>(x);
    const std::byte* const source = wire.data();
    exec::host::reduce_rows<R, false, false>(&source, nullptr, 1, 1, reinterpret_cast<std::byte*>(y.data()), x.size(),
                                             0, 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double const exact = static_cast<double>(static_cast<float>(x[i]));
      errors += std::pow(static_cast<double>(static_cast<float>(y[i])) - exact, 2);
      norms += exact * exact;
    }
  }
  return std::sqrt(errors / norms);
}

//! Lognormal, one in a thousand far out.
float outlying(std::mt19937_64& generator) {
  std::normal_distribution<float> normal;
  float const size = std::exp(2 * normal(generator)) / 16, x = std::copysign(size, normal(generator));
  return generator() % 1000 == 0 ? 1000 * x : x;
}

//! Sums of rows of `draw` stay within the bound.
template <class R, class Draw>
void check_bound(Draw&& draw, int n) {
  using T = typename R::ElementType;
  constexpr std::size_t kHidden = 1024;
  std::size_t const block = R::kScaled ? static_cast<std::size_t>(R::kBlock) : 1;
  std::mt19937_64 generator(static_cast<std::uint64_t>(n) + 3);
  std::vector<std::vector<T>> rows;
  std::vector<std::vector<std::byte>> wires;
  std::vector<const std::byte*> sources;
  for (int i = 0; i < n; ++i) {
    rows.emplace_back(kHidden);
    for (T& v : rows.back()) v = T(draw(generator));
    wires.push_back(coded<R>(rows.back()));
  }
  for (auto const& wire : wires) sources.push_back(wire.data());
  std::vector<T> y(kHidden);
  exec::host::reduce_rows<R, false, false>(sources.data(), nullptr, n, 1, reinterpret_cast<std::byte*>(y.data()),
                                           kHidden, 0, 1);
  for (std::size_t begin = 0; begin < kHidden; begin += block) {
    double largest = 0;
    for (auto const& row : rows)
      for (std::size_t i = begin; i < begin + block; ++i)
        largest = std::max(largest, std::abs(static_cast<double>(static_cast<float>(row[i]))));
    for (std::size_t i = begin; i < begin + block; ++i) {
      double exact = 0;
      for (auto const& row : rows) exact += static_cast<double>(static_cast<float>(row[i]));
      double const got = static_cast<double>(static_cast<float>(y[i]));
      INFO(n << " rows, element " << i << ": " << got << " instead of " << exact << " in a block of " << largest);
      REQUIRE(std::abs(got - exact) <= R::error_bound(largest, n));
    }
  }
}

}  // namespace

namespace {

//! One block each whose elements lie beside the middle between two codes.
template <class R>
void check_ties(std::uint64_t seed) {
  using T = typename R::ElementType;
  Rng rng(seed);
  auto const n = static_cast<std::size_t>(R::kScaled ? R::kBlock : R::kUnit);
  std::vector<T> x(n), y(n);
  float const largest = std::ldexp(1.0f + static_cast<float>(rng.in(0, 255)) / 256, rng.in(-6, 6));
  for (T& v : x) {
    auto const code = R::CodeType::from_bits(static_cast<std::uint8_t>(rng.in(1, 0x7a)));
    auto const next = R::CodeType::from_bits(static_cast<std::uint8_t>(code.bits + 1));
    float const middle = (static_cast<float>(code) + static_cast<float>(next)) / 2 / R::CodeType::kMax * largest;
    v = T(std::nextafter(middle, rng.one_in(2) ? 0.0f : 1e9f));
  }
  x[0] = T(largest);
  auto const wire = coded<R>(x);
  const std::byte* const source = wire.data();
  exec::host::reduce_rows<R, false, false>(&source, nullptr, 1, 1, reinterpret_cast<std::byte*>(y.data()), n, 0, 1);
  double most = 0;
  for (T v : x) most = std::max(most, std::abs(static_cast<double>(static_cast<float>(v))));
  for (std::size_t i = 0; i < n; ++i) {
    auto const exact = static_cast<double>(static_cast<float>(x[i])),
               value = static_cast<double>(decoded<R>(wire, n, i)), got = static_cast<double>(static_cast<float>(y[i])),
               size = R::kScaled ? most : std::abs(exact);
    INFO("seed " << seed << ": " << exact << " in a block of " << most << " became " << value << ", then " << got);
    REQUIRE(std::abs(value - exact) <= R::error_bound(size));
    REQUIRE(std::abs(got - exact) <= R::error_bound(size, 1));
  }
}

}  // namespace

TEST_CASE("bounds hold where rounding is worst") {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(scaled(400, 100)); ++seed) {
    check_ties<CodedRow<float, fp8_e4m3, 128>>(seed);
    check_ties<CodedRow<bf16, fp8_e4m3_fnuz, 64>>(seed);
    check_ties<CodedRow<fp16, fp8_e4m3, 32>>(seed);
    check_ties<CodedRow<float, fp8_e5m2, 128>>(seed);
    check_ties<CodedRow<float, fp8_e4m3, 32, e8m0>>(seed);
    check_ties<CodedRow<float, fp8_e4m3, 0>>(seed);
  }
}

TEST_CASE("bounds hold for sums of rows of any distribution") {
  auto const each = [](auto&& draw) {
    for (int n : {1, 2, 9, 32}) {
      check_bound<CodedRow<bf16, fp8_e4m3, 128>>(draw, n);
      check_bound<CodedRow<float, fp8_e5m2, 64>>(draw, n);
      check_bound<CodedRow<float, fp8_e4m3_fnuz, 128, e8m0>>(draw, n);
      check_bound<CodedRow<fp16, fp4x2_e2m1, 32>>(draw, n);
      check_bound<CodedRow<bf16, fp4x2_e2m1, 32, e8m0>>(draw, n);
      check_bound<CodedRow<float, fp8_e4m3, 0>>(draw, n);
    }
  };
  each([](auto& generator) { return std::normal_distribution<float>()(generator); });
  each(outlying);
  each([](auto& generator) {  // two buckets: most elements are nothing beside the others
    float const x = std::uniform_real_distribution<float>(-1, 1)(generator);
    return generator() % 8 == 0 ? 300 * x : x / 300;
  });
}

TEST_CASE("what coding costs: blocks against casts, on normal data and on lognormal data with outliers") {
  std::normal_distribution<float> normal;
  auto const plain = [&](auto& generator) { return normal(generator); };
  using Blocks = CodedRow<bf16, fp8_e4m3, 128>;
  using Casts = CodedRow<bf16, fp8_e4m3, 0>;
  using Fp4 = CodedRow<bf16, fp4x2_e2m1, 32>;
  double const blocks = relative_error<Blocks>(outlying), casts = relative_error<Casts>(outlying);
  double const blocks_plain = relative_error<Blocks>(plain), casts_plain = relative_error<Casts>(plain);
  std::printf("relative L2 error, lognormal with outliers: fp8 by 128 %.4f, fp8 cast %.4f, fp4 by 32 %.4f\n", blocks,
              casts, relative_error<Fp4>(outlying));
  std::printf("                   normal:                  fp8 by 128 %.4f, fp8 cast %.4f, fp4 by 32 %.4f\n",
              blocks_plain, casts_plain, relative_error<Fp4>(plain));
  REQUIRE(blocks <= 0.7 * casts);
  REQUIRE(blocks_plain <= casts_plain);
}

}  // namespace mori_ep::test
