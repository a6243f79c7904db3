// SPDX-License-Identifier: MIT
//! @file The standard-MoE layout [E_r, C, H]: received rows by local expert, as DeepEP's low-latency interface has
//! them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/tensor_view.hpp"
#include "mori_ep/quant/policy.hpp"
#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/operand_checks.hpp"
#include "mori_ep/schedule/operands.hpp"

namespace mori_ep::layout {

//! @brief Caller-owned memory for rows by expert. A row that names several local experts is there once for each.
//!
//! Expert e's rows are rows [e * C, e * C + packed_recv_count[e]) of `packed_recv_x`, ordered by (source rank, source
//! token). C is `max_rows_per_expert`; rows past it are not written and counted in `packed_dropped`; R is never too
//! small. A row of codes of two elements is H / 2 wide. Scales lie beside their rows where there is memory for them;
//! without it they are in Dispatched::scales alone, by received row (row_slots says which is where). Names and meaning of
//! the packed_* fields: MORI-EP user guide section 4, DeepEP low_latency_dispatch.
template <class T>
struct StandardMoe {
  TensorView<T> packed_recv_x;                 //!< [E_r * C, H], rows 16-byte aligned
  TensorView<std::byte> packed_recv_scales{};  //!< [E_r * C, scale_dim * scale_type_size], or empty; rows aligned to 4
                                               //!< bytes where they are a multiple of that
  std::int32_t* packed_recv_count = nullptr;   //!< [E_r]
  std::int32_t* packed_recv_src_info = nullptr;      //!< [E_r * C] source positions: src_rank * M + src_token
  std::int64_t* packed_recv_layout_range = nullptr;  //!< [E_r, W] per source rank: first row << 32 | rows
  std::int32_t* row_slots = nullptr;  //!< [R, K] where row r's entry k lies in packed_recv_x, -1 when dropped or named
                                      //!< twice; undefined for entries that are no local expert
  std::int64_t* packed_dropped = nullptr;  //!< [E_r]
  std::int64_t max_rows_per_expert = 0;    //!< C
};

//! @brief Is `packed` memory for the rows of `local_experts` experts, of H elements each, and for their scales, if it is to
//!        have them, so many bytes a row?
template <class T>
[[nodiscard]] Status check(const StandardMoe<T>& packed, int local_experts, std::int64_t hidden,
                           std::size_t scale_bytes, const schedule::OperandChecks& operands) noexcept {
  std::int64_t const per_expert = packed.max_rows_per_expert, limit = INT32_MAX / local_experts;
  if (per_expert < 1 || per_expert > limit)
    return operands.bad("max_rows_per_expert", per_expert, limit,
                        "Give 1 to the limit: how many rows one expert has room for.");
  if (Status s = operands.shaped(packed.packed_recv_x, "packed_recv_x rows", "packed_recv_x columns",
                                 "packed_recv_x row bytes", per_expert * local_experts, quant::units_of<T>(hidden), 16);
      !s.ok())
    return s;
  const auto& scales = packed.packed_recv_scales;
  if (scale_bytes == 0 && (scales.data != nullptr || scales.rows != 0))
    return operands.bad("packed_recv_scales", 1, 0,
                        "Dispatches of this operator bring no scales: leave the view empty.");
  if (scales.data != nullptr || scales.rows != 0)
    if (Status s = operands.shaped(scales, "packed_recv_scales rows", "packed_recv_scales columns",
                                   "packed_recv_scales row bytes", per_expert * local_experts,
                                   static_cast<std::int64_t>(scale_bytes), scale_bytes % 4 == 0 ? 4 : 1);
        !s.ok())
      return s;
  if (packed.packed_recv_count == nullptr || packed.packed_recv_src_info == nullptr ||
      packed.packed_recv_layout_range == nullptr || packed.row_slots == nullptr || packed.packed_dropped == nullptr)
    return operands.bad("packed layout", 0, 1, "Every field of StandardMoe but packed_recv_scales needs memory.");
  return {};
}

//! @brief Numbers the rows of each expert, one warp per expert.
template <class Buffers, class T, routing::IndexType Index>
struct IndexKernel {
  Buffers from;
  StandardMoe<T> to;
  std::int32_t rank, world, local_experts, topk, max_tokens;

  [[nodiscard]] static std::size_t shared_bytes(int) noexcept { return 0; }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    for (std::int32_t e = ctx.block() * ctx.warps() + ctx.warp(); e < local_experts; e += ctx.blocks() * ctx.warps())
      if (ctx.lane() == 0) number_rows(ctx, e);
  }

 private:
  template <class Ctx>
  MORI_EP_HD void number_rows(Ctx& ctx, std::int32_t e) const {
    auto const id = static_cast<Index>(rank * local_experts + e);
    std::int32_t const rows = ctx.load(&from.totals->recv_count);
    std::int64_t count = 0, dropped = 0;
    std::int32_t source = 0, first = 0;
    auto* ranges = to.packed_recv_layout_range + static_cast<std::ptrdiff_t>(e) * world;
    auto const close_range = [&](std::int32_t until) {
      for (; source < until; ++source) {
        ctx.store(ranges + source, (std::int64_t{first} << 32) | (count - first));
        first = static_cast<std::int32_t>(count);
      }
    };
    for (std::int32_t r = 0; r < rows; ++r) {
      bool named = false;
      for (std::int32_t k = 0; k < topk; ++k) {
        if (ctx.load(from.ids + static_cast<std::ptrdiff_t>(r) * topk + k) != id) continue;
        std::int32_t slot = -1;
        if (!named && count < to.max_rows_per_expert) {
          std::int32_t const position = ctx.load(from.src_pos + r);
          close_range(position / max_tokens);
          slot = static_cast<std::int32_t>(e * to.max_rows_per_expert + count++);
          ctx.store(to.packed_recv_src_info + slot, position);
        } else if (!named) {
          ++dropped;
        }
        named = true;
        ctx.store(to.row_slots + static_cast<std::ptrdiff_t>(r) * topk + k, slot);
      }
    }
    close_range(world);
    ctx.store(to.packed_recv_count + e, static_cast<std::int32_t>(count));
    ctx.store(to.packed_dropped + e, dropped);
  }
};

//! @brief Is entry k of a received row an expert of this rank?
template <routing::IndexType Index>
MORI_EP_HD constexpr bool is_local(Index id, std::int32_t rank, std::int32_t local_experts) noexcept {
  return id >= static_cast<Index>(rank * local_experts) && id < static_cast<Index>((rank + 1) * local_experts);
}

//! @brief Copies each received row to its experts' rows, one warp per row: read once, written once per expert. Its scales
//!        follow where `to` has memory for them.
template <class Buffers, class T, routing::IndexType Index>
struct PackKernel {
  Buffers from;
  StandardMoe<T> to;
  std::int32_t rank, local_experts, topk;
  std::size_t units;        // T of a row
  std::size_t scale_bytes;  // of a row

  [[nodiscard]] std::size_t shared_bytes(int warps) const noexcept {
    return static_cast<std::size_t>(warps) * static_cast<std::size_t>(topk) * sizeof(std::byte*) + 64;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    auto const k_count = static_cast<std::size_t>(topk);
    auto** targets = ctx.template shared<std::byte*>(static_cast<std::size_t>(ctx.warps()) * k_count) +
                     static_cast<std::size_t>(ctx.warp()) * k_count;
    std::int32_t const rows = ctx.load(&from.totals->recv_count);
    for (std::int32_t r = ctx.block() * ctx.warps() + ctx.warp(); r < rows; r += ctx.blocks() * ctx.warps()) {
      std::int32_t copies = 0;
      for (std::int32_t k = 0; k < topk; ++k) {
        std::ptrdiff_t const at = static_cast<std::ptrdiff_t>(r) * topk + k;
        if (!is_local(ctx.load(from.ids + at), rank, local_experts)) continue;
        std::int32_t const slot = ctx.load(to.row_slots + at);
        if (slot < 0) continue;
        if (ctx.lane() == 0) targets[copies] = reinterpret_cast<std::byte*>(to.packed_recv_x.row(slot));
        ++copies;
        if (to.packed_recv_scales.data != nullptr)
          copy_scales(ctx, from.scales + static_cast<std::size_t>(r) * scale_bytes, to.packed_recv_scales.row(slot));
      }
      ctx.warp_sync();
      auto const* row = reinterpret_cast<const std::byte*>(from.x + static_cast<std::size_t>(r) * units);
      ctx.multicast_row(
          row, targets, [&] { return copies; }, units * sizeof(T), 0, 1);
      ctx.warp_sync();
    }
  }

 private:
  template <class Ctx>
  MORI_EP_HD void copy_scales(Ctx& ctx, const std::byte* scales, std::byte* target) const {
    using Word = std::uint32_t;
    if (scale_bytes % sizeof(Word) == 0)
      ctx.pack(reinterpret_cast<Word*>(target), 1, static_cast<std::int32_t>(scale_bytes / sizeof(Word)),
               [&](std::int32_t) { return reinterpret_cast<const Word*>(scales); });
    else
      ctx.pack(target, 1, static_cast<std::int32_t>(scale_bytes), [&](std::int32_t) { return scales; });
  }
};

//! @brief Weights and sums each received row's experts into the registered combine buffer: fp32, one rounding, in the
//!        order of the row's entries. An expert named twice has the sum of both weights.
template <class Buffers, Element T, routing::IndexType Index>
struct UnpackKernel {
  StandardMoe<T> from;
  Buffers to;
  std::int32_t rank, local_experts, topk;
  std::size_t hidden;
  static constexpr bool kReducesRows = true;

  [[nodiscard]] std::size_t shared_bytes(int warps) const noexcept {
    return static_cast<std::size_t>(warps) * static_cast<std::size_t>(topk) * (sizeof(std::byte*) + sizeof(float)) + 64;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    auto const per_block = static_cast<std::size_t>(ctx.warps()) * static_cast<std::size_t>(topk);
    auto const mine = static_cast<std::size_t>(ctx.warp()) * static_cast<std::size_t>(topk);
    auto** sources = ctx.template shared<const std::byte*>(per_block) + mine;
    auto* factors = ctx.template shared<float>(per_block) + mine;
    std::int32_t const rows = ctx.load(&to.totals->recv_count);
    for (std::int32_t r = ctx.block() * ctx.warps() + ctx.warp(); r < rows; r += ctx.blocks() * ctx.warps()) {
      const Index* ids = to.ids + static_cast<std::ptrdiff_t>(r) * topk;
      const float* weights = to.weights + static_cast<std::ptrdiff_t>(r) * topk;
      std::int32_t terms = 0;
      for (std::int32_t k = 0; k < topk; ++k) {
        Index const id = ctx.load(ids + k);
        if (!is_local(id, rank, local_experts)) continue;
        std::int32_t const slot = ctx.load(from.row_slots + static_cast<std::ptrdiff_t>(r) * topk + k);
        if (slot < 0) continue;
        float weight = 0;
        for (std::int32_t j = 0; j < topk; ++j)
          if (ctx.load(ids + j) == id) weight += ctx.load(weights + j);
        if (ctx.lane() == 0) {
          sources[terms] = reinterpret_cast<const std::byte*>(from.packed_recv_x.row(slot));
          factors[terms] = weight;
        }
        ++terms;
      }
      ctx.warp_sync();
      auto* out = reinterpret_cast<std::byte*>(to.combine_x + static_cast<std::size_t>(r) * hidden);
      if (terms == 0)
        ctx.zero_row(out, hidden * sizeof(T), 0, 1);
      else
        ctx.template reduce_rows<T, true>(sources, factors, terms, 1u, out, hidden, 0, 1);
      ctx.warp_sync();
    }
  }
};

}  // namespace mori_ep::layout
