// SPDX-License-Identifier: MIT
// The hot path allocates nothing: every operator new of the process is counted while dispatch and combine run.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"

#if defined(__CUDACC__)
#pragma nv_diag_suppress 20011  // nvcc takes the operators below for functions of the device as well
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

[[gnu::noinline]] void* counted_allocation(std::size_t bytes, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

[[gnu::noinline]] void counted_release(void* memory) noexcept { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return counted_allocation(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_allocation(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_allocation(bytes, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept { counted_release(memory); }
void operator delete(void* memory, std::size_t) noexcept { counted_release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { counted_release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { counted_release(memory); }

TEST_CASE("dispatch and combine allocate nothing once a stream has seen their geometry",
          "[ep_dispatch_combine_allocation]") {
  using namespace mori_ep;
  using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, test::Machine>;
  using test::Vector;
  constexpr int kWorld = 4, kTokens = 16, kHidden = 32, kTopk = 4, kCalls = 50;
  std::atomic<int> ready{0};
  auto const all_meet = [&](int turn) {
    ready.fetch_add(1);
    while (ready.load() < turn * kWorld) std::this_thread::yield();
  };
  LocalWorld(kWorld)
      .run([&](Communicator& comm) {
        test::Stream stream;
        auto ep = Ep::create(comm, {.hidden_dim = kHidden,
                                    .max_num_inp_token_per_rank = kTokens,
                                    .num_experts_per_rank = 2,
                                    .num_experts_per_token = kTopk,
                                    .block_num = 2,
                                    .warp_num_per_block = 2})
                      .value();
        Vector<float> x(kTokens * kHidden, 1.0f), y(x.size()), weights(kTokens * kTopk, 0.25f);
        Vector<std::int32_t> ids(kTokens * kTopk);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 3) % (2 * kWorld));
        auto const round = [&] {
          auto got = ep.dispatch({.input = {x.data(), kTokens, kHidden},
                                  .indices = {ids.data(), kTokens, kTopk},
                                  .weights = {weights.data(), kTokens, kTopk}},
                                 stream);
          got.status().or_throw();
          ep.combine(std::move(got->ticket), {.input = got->rows, .output = {y.data(), kTokens, kHidden}}, stream)
              .or_throw();
        };
        round();
        stream.synchronize();
        all_meet(1);
        if (comm.rank() == 0) counting = true;
        all_meet(2);
        for (int i = 0; i < kCalls; ++i) round();
        stream.synchronize();
        all_meet(3);
        if (comm.rank() == 0) counting = false;
        all_meet(4);
        ep.status().or_throw();
      })
      .or_throw();
  CHECK(allocations.load() == 0);

  // The counter itself counts.
  counting = true;
  ::operator delete(::operator new(1));
  counting = false;
  CHECK(allocations.load() >= 1);
}
