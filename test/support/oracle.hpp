// SPDX-License-Identifier: MIT
//! @file What dispatch and combine must give, from all ranks' inputs: plain loops and double arithmetic.
//!
//! Nothing of the library is used or included here, so that no mistake can be made twice in the same way.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace oracle {

enum class Format { bf16, fp16, fp32 };

//! @brief A binary floating-point format: stored mantissa bits, exponent of the smallest normal, bits of infinity.
struct FormatInfo {
  std::size_t bytes;
  int mantissa, emin;
  std::uint32_t infinity;
};
constexpr FormatInfo info(Format f) noexcept {
  if (f == Format::bf16) return {2, 7, -126, 0x7f80u};
  if (f == Format::fp16) return {2, 10, -14, 0x7c00u};
  return {4, 23, -126, 0x7f800000u};
}
constexpr std::size_t bytes_of(Format f) noexcept { return info(f).bytes; }

inline double decode_slowly(Format f, std::uint32_t bits) noexcept {
  FormatInfo const i = info(f);
  std::uint32_t const sign_bit = std::uint32_t{1} << (8 * i.bytes - 1);
  double const sign = (bits & sign_bit) != 0 ? -1.0 : 1.0;
  std::uint32_t const magnitude = bits & (sign_bit - 1);
  if (magnitude > i.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == i.infinity) return sign * std::numeric_limits<double>::infinity();
  std::uint32_t const one = std::uint32_t{1} << i.mantissa;
  auto const exponent = static_cast<int>(magnitude >> i.mantissa);
  double const fraction = magnitude & (one - 1);
  if (exponent == 0) return sign * std::ldexp(fraction, i.emin - i.mantissa);
  return sign * std::ldexp(fraction + one, i.emin + exponent - 1 - i.mantissa);
}

//! @brief The value of an element's bits. 16-bit formats from a table made by `decode_slowly`.
inline double decode(Format f, std::uint32_t bits) noexcept {
  if (f == Format::fp32) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static const auto tables = [] {
    std::vector<double> t(2 * 65536);
    for (std::uint32_t b = 0; b < 65536; ++b) {
      t[b] = decode_slowly(Format::bf16, b);
      t[65536 + b] = decode_slowly(Format::fp16, b);
    }
    return t;
  }();
  return tables[(f == Format::bf16 ? 0 : 65536) + (bits & 0xffffu)];
}

//! @brief The bits nearest to a value, ties to even, overflow to infinity: value / quantum, rounded, is the code.
inline std::uint32_t encode(Format f, double value) noexcept {
  FormatInfo const i = info(f);
  std::uint32_t const sign = std::signbit(value) ? std::uint32_t{1} << (8 * i.bytes - 1) : 0;
  if (std::isnan(value)) return sign | i.infinity | (std::uint32_t{1} << (i.mantissa - 1));
  double const a = std::fabs(value);
  if (a == 0) return sign;
  if (std::isinf(a)) return sign | i.infinity;
  int exponent = std::ilogb(a);
  if (exponent < i.emin) exponent = i.emin;
  double const code = std::nearbyint(std::ldexp(a, i.mantissa - exponent));
  // A normal code carries the hidden bit, which stands for one exponent step; a carry of the rounding is another.
  double const whole = std::ldexp(static_cast<double>(exponent - i.emin), i.mantissa) + code;
  return sign | (whole >= i.infinity ? i.infinity : static_cast<std::uint32_t>(whole));
}

//! @brief fp32 sum and product with one rounding. In double both are exact enough that rounding twice is rounding once,
//!        and no compiler fuses them.
inline float add(float a, float b) noexcept {
  return static_cast<float>(static_cast<double>(a) + static_cast<double>(b));
}
inline float multiply(float a, float b) noexcept {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

inline std::uint32_t load(Format f, const std::byte* row, std::size_t i) noexcept {
  if (f == Format::fp32) {
    std::uint32_t bits;
    std::memcpy(&bits, row + 4 * i, 4);
    return bits;
  }
  std::uint16_t bits;
  std::memcpy(&bits, row + 2 * i, 2);
  return bits;
}
inline void store(Format f, std::byte* row, std::size_t i, std::uint32_t bits) noexcept {
  if (f == Format::fp32) {
    std::memcpy(row + 4 * i, &bits, 4);
    return;
  }
  auto const half = static_cast<std::uint16_t>(bits);
  std::memcpy(row + 2 * i, &half, 2);
}

//! @brief One rank's tokens, without gaps: x [count, H] elements, ids [count, K], weights [count, K] or none, scales.
struct Tokens {
  int count = 0;
  std::vector<std::byte> x;
  std::vector<std::int64_t> ids;
  std::vector<float> weights;
  std::vector<std::byte> scales;
};

struct Problem {
  int world = 1, hidden = 0, topk = 0, experts_per_rank = 0;
  Format format = Format::fp32;
  std::size_t scale_bytes = 0;
  std::int64_t capacity = 0;  //!< rows a rank has room for
  std::vector<Tokens> ranks;
  [[nodiscard]] std::size_t row_bytes() const noexcept { return static_cast<std::size_t>(hidden) * bytes_of(format); }
};

struct Row {
  int source = 0, token = 0;
};

//! @brief What one rank receives.
struct Received {
  std::vector<Row> rows;  //!< those kept, in order
  std::int64_t total = 0, dropped = 0;
  std::int64_t invalid_ids = 0;  //!< among its own tokens' ids
  std::vector<std::int32_t> expert_count;
};

//! @brief The rank of an expert, -1 for everything that is none.
inline int owner(const Problem& p, std::int64_t id) noexcept {
  for (int rank = 0; rank < p.world; ++rank)
    if (id >= std::int64_t{rank} * p.experts_per_rank && id < std::int64_t{rank + 1} * p.experts_per_rank) return rank;
  return -1;
}

inline const std::int64_t* ids_of(const Problem& p, int source, int token) noexcept {
  return p.ranks[static_cast<std::size_t>(source)].ids.data() +
         static_cast<std::size_t>(token) * static_cast<std::size_t>(p.topk);
}

inline bool goes_to(const Problem& p, int source, int token, int rank) noexcept {
  const std::int64_t* ids = ids_of(p, source, token);
  for (int k = 0; k < p.topk; ++k)
    if (ids[k] >= 0 && owner(p, ids[k]) == rank) return true;
  return false;
}

inline std::vector<Received> dispatch(const Problem& p) {
  std::vector<Received> out(static_cast<std::size_t>(p.world));
  for (int rank = 0; rank < p.world; ++rank) {
    Received& here = out[static_cast<std::size_t>(rank)];
    here.expert_count.assign(static_cast<std::size_t>(p.experts_per_rank), 0);
    for (int source = 0; source < p.world; ++source) {
      for (int token = 0; token < p.ranks[static_cast<std::size_t>(source)].count; ++token) {
        if (!goes_to(p, source, token, rank)) continue;
        ++here.total;
        if (static_cast<std::int64_t>(here.rows.size()) == p.capacity) {
          ++here.dropped;
          continue;
        }
        here.rows.push_back({source, token});
        const std::int64_t* ids = ids_of(p, source, token);
        for (int e = 0; e < p.experts_per_rank; ++e) {
          bool named = false;
          for (int k = 0; k < p.topk; ++k) named |= ids[k] == std::int64_t{rank} * p.experts_per_rank + e;
          here.expert_count[static_cast<std::size_t>(e)] += named ? 1 : 0;
        }
      }
    }
    for (std::int64_t id : p.ranks[static_cast<std::size_t>(rank)].ids)
      if (id != -1 && owner(p, id) < 0) ++here.invalid_ids;
  }
  return out;
}

//! @brief What combine gives one rank: the bits that the declared arithmetic leads to, and the exact value with the
//!        error that this arithmetic may make.
struct Combined {
  std::vector<std::byte> y;
  std::vector<double> exact, bound;
  std::vector<float> weights;
};

//! @brief A sum in the declared order: each group of ranks first by itself, then the groups, fp32 throughout.
class GroupedSum {
 public:
  GroupedSum() = default;
  //! @brief The sums of all groups but `own` are rounded to `format` before they are added.
  GroupedSum(Format format, int own) noexcept : format_(format), own_(own) {}
  void term(int group, float value) noexcept {
    if (terms_++ == 0) {
      partial_ = value;
    } else if (group != group_) {
      total_ = closed_++ == 0 ? closing() : add(total_, closing());
      partial_ = value;
    } else {
      partial_ = add(partial_, value);
    }
    group_ = group;
  }
  [[nodiscard]] float value() const noexcept {
    return terms_ == 0 ? 0.0f : closed_ == 0 ? closing() : add(total_, closing());
  }

 private:
  [[nodiscard]] float closing() const noexcept {
    return group_ == own_ || format_ == Format::fp32
               ? partial_
               : static_cast<float>(decode(format_, encode(format_, static_cast<double>(partial_))));
  }
  Format format_ = Format::fp32;
  int own_ = 0;
  int terms_ = 0, closed_ = 0, group_ = 0;
  float partial_ = 0, total_ = 0;
};

//! @brief Row numbers by rank, source and token; -1 where nothing was received.
class RowIndex {
 public:
  RowIndex(const Problem& p, const std::vector<Received>& received) : rows_(received.size()) {
    for (std::size_t rank = 0; rank < received.size(); ++rank) {
      rows_[rank].resize(received.size());
      for (std::size_t source = 0; source < received.size(); ++source)
        rows_[rank][source].assign(static_cast<std::size_t>(p.ranks[source].count), -1);
      for (std::size_t r = 0; r < received[rank].rows.size(); ++r) {
        Row const row = received[rank].rows[r];
        rows_[rank][static_cast<std::size_t>(row.source)][static_cast<std::size_t>(row.token)] = static_cast<int>(r);
      }
    }
  }
  [[nodiscard]] int row(int rank, int source, int token) const noexcept {
    return rows_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(source)][static_cast<std::size_t>(token)];
  }

 private:
  std::vector<std::vector<std::vector<int>>> rows_;
};

//! @brief Combine for rank `source`, given the rows [recv_count, H] (and weights [recv_count, K], or none) that every
//!        rank returned. Ranks are summed `group` at a time. `weighted`: rows times the token's weight on that rank.
//!        `rounds`: the sums of groups that the source is not in are rounded before they are added.
inline Combined combine(const Problem& p, const RowIndex& index, const std::vector<std::vector<std::byte>>& returned,
                        const std::vector<std::vector<float>>& returned_weights, int source, int group, bool weighted,
                        bool rounds = false) {
  const Tokens& mine = p.ranks[static_cast<std::size_t>(source)];
  auto const hidden = static_cast<std::size_t>(p.hidden), k = static_cast<std::size_t>(p.topk),
             count = static_cast<std::size_t>(mine.count);
  FormatInfo const format = info(p.format);
  Combined out;
  out.y.resize(count * p.row_bytes());
  out.exact.assign(count * hidden, 0);
  out.bound.assign(count * hidden, 0);
  if (!returned_weights.empty()) out.weights.assign(count * k, 0);
  for (int token = 0; token < mine.count; ++token) {
    auto const t = static_cast<std::size_t>(token);
    std::vector<GroupedSum> sums(hidden, rounds ? GroupedSum(p.format, source / group) : GroupedSum()), weight_sums(k);
    std::vector<double> magnitude(hidden, 0);
    int terms = 0;
    for (int rank = 0; rank < p.world; ++rank) {
      int const row = index.row(rank, source, token);
      if (row < 0) continue;
      ++terms;
      float factor = 0;
      if (weighted)
        for (int j = 0; j < p.topk; ++j)
          if (owner(p, ids_of(p, source, token)[j]) == rank)
            factor = add(factor, mine.weights[t * k + static_cast<std::size_t>(j)]);
      const std::byte* x =
          returned[static_cast<std::size_t>(rank)].data() + static_cast<std::size_t>(row) * p.row_bytes();
      for (std::size_t h = 0; h < hidden; ++h) {
        auto const value = static_cast<float>(decode(p.format, load(p.format, x, h)));
        sums[h].term(rank / group, weighted ? multiply(value, factor) : value);
        double const exact = static_cast<double>(value) * (weighted ? static_cast<double>(factor) : 1.0);
        out.exact[t * hidden + h] += exact;
        magnitude[h] += std::fabs(exact);
      }
      if (!returned_weights.empty())
        for (std::size_t j = 0; j < k; ++j)
          weight_sums[j].term(rank / group,
                              returned_weights[static_cast<std::size_t>(rank)][static_cast<std::size_t>(row) * k + j]);
    }
    for (std::size_t h = 0; h < hidden; ++h) {
      store(p.format, out.y.data() + t * p.row_bytes(), h, encode(p.format, static_cast<double>(sums[h].value())));
      // Each fp32 product and sum errs by 2^-24 of at most the sum of magnitudes; the last rounding by half a unit.
      double const in_fp32 = 2.0 * terms * std::ldexp(magnitude[h], -24) + std::ldexp(1.0, -148);
      double const last = std::ldexp(std::fabs(out.exact[t * hidden + h]) + in_fp32, -format.mantissa - 1) +
                          std::ldexp(1.0, format.emin - format.mantissa - 1);
      // A group's rounding errs by half a unit of its sum, and all groups together by that of the sum of magnitudes.
      double const groups = rounds ? std::ldexp(magnitude[h] + in_fp32, -format.mantissa - 1) +
                                         terms * std::ldexp(1.0, format.emin - format.mantissa - 1)
                                   : 0;
      out.bound[t * hidden + h] = in_fp32 + last + groups * (1 + std::ldexp(1.0, -format.mantissa - 1));
    }
    if (!returned_weights.empty())
      for (std::size_t j = 0; j < k; ++j) out.weights[t * k + j] = weight_sums[j].value();
  }
  return out;
}

}  // namespace oracle
