// SPDX-License-Identifier: MIT
//! @file What the explorer's kernel context does at each call: a step of its thread, an access that is looked at.
#pragma once

#include "support/explore.hpp"

namespace mori_ep::test {

inline void ExploreContext::block_sync() {
  if (warps_ == 1) return;
  auto& m = *machine_;
  m.step(fibre_);
  for (auto& rank : m.ranks_) {
    if (fibre_ < rank.first || fibre_ >= rank.first + rank.width) continue;
    auto const b = static_cast<std::size_t>(block_);
    int const turn = rank.at_barrier[b]++ / warps_;
    Explorer::Clock& met = rank.barrier_clock[b][turn];
    met.resize(2 * m.fibres_.size());
    Explorer::join(met, m.clock(fibre_));
    m.tick(fibre_);
    m.step(fibre_, [&rank, b, turn, this] { return rank.at_barrier[b] / warps_ > turn; });
    Explorer::join(m.clock(fibre_), met);
  }
}
inline bool ExploreContext::arrive(std::uint32_t* counter, std::uint32_t pieces, std::uint32_t all) {
  auto& m = *machine_;
  m.step(fibre_);
  m.touch(fibre_, counter, sizeof(*counter), true, true);
  m.acquire(fibre_, counter);
  m.release(fibre_, counter, true);
  *counter += pieces;
  if (*counter != all) return false;
  *counter = 0;
  return true;
}
inline void ExploreContext::tally(std::uint32_t* word, std::uint32_t value) {
  machine_->step(fibre_);
  machine_->touch(fibre_, word, sizeof(*word), true, true);
  *word += value;
}
template <class T>
T ExploreContext::load(const T* p) {
  machine_->step(fibre_);
  machine_->touch(fibre_, p, sizeof(T), false);
  return *p;
}
template <class T>
void ExploreContext::store(T* p, std::type_identity_t<T> value) {
  machine_->step(fibre_);
  machine_->touch(fibre_, p, sizeof(T), true);
  *p = value;
}
inline void ExploreContext::copy(void* to, const void* from, std::size_t bytes) {
  machine_->step(fibre_);
  machine_->touch(fibre_, from, bytes, false);
  machine_->touch(fibre_, to, bytes, true);
  std::memcpy(to, from, bytes);
}
template <class Place>
void ExploreContext::multicast_row(const std::byte* src, std::byte* const* dst, Place&& place, std::size_t bytes,
                                   int part, int parts) {
  int const n = place();
  auto const span = exec::host::Span::part(bytes, part, parts);
  machine_->touch(fibre_, src + span.begin, span.end - span.begin, false);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, dst[i] + span.begin, span.end - span.begin, true, false, true);
    std::memcpy(dst[i] + span.begin, src + span.begin, span.end - span.begin);
  }
}
template <CodedRowType R, class Place>
void ExploreContext::encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales,
                                Place&& place, std::size_t elements, int part, int parts) {
  using T = RowElement<R>;
  int const n = place();
  auto const cells = exec::host::Span::part(elements, part, parts, exec::host::kCodedCell<R>);
  std::size_t const first = R::scale_bytes(cells.begin), scale_bytes = R::scale_bytes(cells.end) - first;
  machine_->touch(fibre_, src + cells.begin * sizeof(T), (cells.end - cells.begin) * sizeof(T), false);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, payloads[i] + R::payload_bytes(cells.begin), R::payload_bytes(cells.end - cells.begin),
                    true, false, true);
    if (scale_bytes != 0) machine_->touch(fibre_, scales[i] + first, scale_bytes, true, false, true);
  }
  exec::host::encode_row<R, false>(src, payloads, scales, n, elements, part, parts);
}
template <CodedRowType R, bool Weighted>
void ExploreContext::reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                                 std::byte* dst, std::size_t elements, int part, int parts) {
  using T = RowElement<R>;
  auto const cells = exec::host::Span::part(elements, part, parts, exec::host::kCodedCell<R>);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, srcs[i], R::row_bytes(elements), false);
  }
  machine_->touch(fibre_, dst + cells.begin * sizeof(T), (cells.end - cells.begin) * sizeof(T), true, false, true);
  exec::host::reduce_rows<R, Weighted, false>(srcs, weights, n, group_starts, dst, elements, part, parts);
}
template <Element T, bool Weighted>
void ExploreContext::reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                                 std::byte* dst, std::size_t elements, int part, int parts) {
  auto const span = exec::host::Span::part(elements * sizeof(T), part, parts);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, srcs[i] + span.begin, span.end - span.begin, false);
  }
  machine_->touch(fibre_, dst + span.begin, span.end - span.begin, true, false, true);
  exec::host::reduce_rows<T, Weighted, false>(srcs, weights, n, group_starts, dst, span);
}
template <Element T, bool Weighted>
void ExploreContext::sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                              std::size_t elements, int part, int parts) {
  constexpr std::size_t kWider = sizeof(float) / sizeof(T);
  auto const span = exec::host::Span::part(elements * sizeof(T), part, parts);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, srcs[i] + span.begin, span.end - span.begin, false);
  }
  machine_->touch(fibre_, dst + kWider * span.begin, kWider * (span.end - span.begin), true, false, true);
  exec::host::vectors16::sum_rows<T, Weighted>(srcs, weights, n, dst, span);
}
template <Element T>
void ExploreContext::round_rows(const std::byte* const* srcs, int n, std::byte* dst, std::size_t elements, int part,
                                int parts) {
  constexpr std::size_t kWider = sizeof(float) / sizeof(T);
  auto const span = exec::host::Span::part(elements * sizeof(T), part, parts);
  for (int i = 0; i < n; ++i) {
    machine_->step(fibre_);
    machine_->touch(fibre_, srcs[i] + kWider * span.begin, kWider * (span.end - span.begin), false);
  }
  machine_->touch(fibre_, dst + span.begin, span.end - span.begin, true, false, true);
  exec::host::vectors16::round_rows<T>(srcs, n, dst, span);
}
inline void ExploreContext::zero_row(std::byte* dst, std::size_t bytes, int part, int parts) {
  auto const span = exec::host::Span::part(bytes, part, parts);
  machine_->step(fibre_);
  machine_->touch(fibre_, dst + span.begin, span.end - span.begin, true, false, true);
  std::memset(dst + span.begin, 0, span.end - span.begin);
}
inline void ExploreContext::flush_stores() {
  if (machine_->bugs_.dropped_flush) return;
  auto& fibre = machine_->fibres_[static_cast<std::size_t>(fibre_)];
  fibre.clock[machine_->fibres_.size() + static_cast<std::size_t>(fibre_)] = fibre.row_stores++;
}
inline void ExploreContext::signal(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) {
  publish(word, exec::signal_word(epoch, payload));
}
//! What the fibre knew when its launch began is all that is released.
inline void ExploreContext::signal_after_launch(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) {
  auto& m = *machine_;
  m.step(fibre_);
  m.touch(fibre_, word, sizeof(*word), true, true);
  if (!m.bugs_.dropped_release) m.sync_[word] = m.fibres_[static_cast<std::size_t>(fibre_)].at_launch;
  *word = exec::signal_word(epoch, payload);
}
inline void ExploreContext::post(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) {
  machine_->step(fibre_);
  machine_->touch(fibre_, word, sizeof(*word), true, true);
  machine_->sync_.erase(word);
  *word = exec::signal_word(epoch, payload);
}
inline void ExploreContext::launch_ends(std::uint32_t* blocks) {
  machine_->step(fibre_);
  machine_->touch(fibre_, blocks, sizeof(*blocks), true, true);
  ++*blocks;
  for (auto& rank : machine_->ranks_)
    for (int i = rank.first; fibre_ >= rank.first && fibre_ < rank.first + rank.width && i < rank.first + rank.width;
         ++i) {
      auto& fibre = machine_->fibres_[static_cast<std::size_t>(i)];
      if (fibre.alive && fibre.block == block_) fibre.block_ended = true;
    }
}
inline exec::WaitResult ExploreContext::wait(std::uint64_t* word, std::uint32_t epoch, const exec::WaitLimits&,
                                             exec::WaitOrder order) {
  auto& m = *machine_;
  auto const* at = reinterpret_cast<const std::byte*>(word);
  bool const unwaited = at >= m.bugs_.unwaited_begin && at < m.bugs_.unwaited_end && epoch != m.bugs_.first_epoch;
  if (unwaited)
    m.step(fibre_);
  else
    m.step(fibre_, [=] { return !exec::epoch_after(epoch, exec::signal_epoch(*word)); });
  m.touch(fibre_, word, sizeof(*word), false, true);
  if (order == exec::WaitOrder::acquire && !m.bugs_.dropped_acquire && !unwaited) m.acquire(fibre_, word);
  if (!unwaited && exec::signal_epoch(*word) != epoch) return {exec::WaitEnd::out_of_step, *word};
  return {exec::WaitEnd::arrived, *word};
}
inline bool ExploreContext::claim(std::uint32_t* flag) {
  auto& m = *machine_;
  m.step(fibre_);
  m.touch(fibre_, flag, sizeof(*flag), true, true);
  m.acquire(fibre_, flag);
  m.release(fibre_, flag, true);
  return std::exchange(*flag, 1u) == 0;
}
inline std::uint32_t ExploreContext::glance(const std::uint32_t* p) {
  machine_->step(fibre_);
  machine_->touch(fibre_, p, sizeof(*p), false, true);
  return *p;
}
template <class T>
T ExploreContext::peek(const T* p) {
  machine_->step(fibre_);
  machine_->touch(fibre_, p, sizeof(T), false, true);
  machine_->acquire(fibre_, p);
  return *p;
}
template <class T>
void ExploreContext::publish(T* p, std::type_identity_t<T> value) {
  machine_->step(fibre_);
  machine_->touch(fibre_, p, sizeof(T), true, true);
  if (!machine_->bugs_.dropped_release) machine_->release(fibre_, p, false);
  *p = value;
}
static_assert(exec::KernelContext<ExploreContext>);
static_assert(exec::ExecPolicy<ExploreExec>);

}  // namespace mori_ep::test
