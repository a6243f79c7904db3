// SPDX-License-Identifier: MIT
// Eight ranks, 4096 tokens each, rows of 7168 bf16, top-8 of 256 experts. Every byte is checked on the device by
// kernels that know nothing of the library, and a sample of tokens by the oracle.
#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {
namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, Machine>;
constexpr int kWorld = 8, kTokens = 4096, kHidden = 7168, kTopk = 8, kExpertsPerRank = 32;
constexpr std::size_t kTokensOfAll = std::size_t{kWorld} * kTokens;

//! Bits of element h of a token: any sign and mantissa, magnitudes 2^-4 to 2^3.
__host__ __device__ inline std::uint16_t payload(std::uint32_t position, std::uint32_t h) {
  std::uint32_t v = position * 0x9e3779b9u + h * 0x85ebca6bu;
  v = (v ^ (v >> 16)) * 0x7feb352du;
  v ^= v >> 15;
  return static_cast<std::uint16_t>((v & 0x807fu) | ((123u + ((v >> 20) & 7u)) << 7));
}
__host__ __device__ inline float weight(std::uint32_t position, int k) {
  return static_cast<float>(payload(position, static_cast<std::uint32_t>(1000000 + k))) * 0.001f;
}
__host__ __device__ inline float slope(int rank) { return 0.75f + 0.3125f * static_cast<float>(rank); }

__device__ inline float widened(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }
__device__ inline std::uint16_t rounded(float value) {  // to nearest even; no NaN comes here
  std::uint32_t const bits = __float_as_uint(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ inline std::uint16_t result(std::uint16_t x, int rank) {
  return rounded(__fmul_rn(widened(x), slope(rank)));
}
__device__ inline bool goes_to(const std::int32_t* ids, int rank) {
  for (int k = 0; k < kTopk; ++k)
    if (ids[k] / kExpertsPerRank == rank) return true;
  return false;
}

__global__ void make_input(std::uint32_t first, std::uint16_t* x, float* weights) {
  for (std::uint32_t t = blockIdx.x; t < kTokens; t += gridDim.x) {
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x)
      x[std::size_t{t} * kHidden + h] = payload(first + t, h);
    if (threadIdx.x < kTopk) weights[t * kTopk + threadIdx.x] = weight(first + t, static_cast<int>(threadIdx.x));
  }
}
//! Compares every received row with what its position says; `all_ids` [tokens of all][K].
__global__ void check_rows(const std::int32_t* positions, int rows, const std::int32_t* recv_count,
                           const std::int32_t* src_pos, const std::uint16_t* x, const std::int32_t* ids,
                           const float* weights, const std::int32_t* all_ids, unsigned long long* wrong) {
  unsigned long long bad = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0 && *recv_count != rows) ++bad;
  for (int r = static_cast<int>(blockIdx.x); r < rows; r += static_cast<int>(gridDim.x)) {
    auto const row = static_cast<std::size_t>(r);
    auto const position = static_cast<std::uint32_t>(positions[row]);
    if (threadIdx.x == 0 && src_pos[row] != positions[row]) ++bad;
    if (threadIdx.x < kTopk) {
      int const k = static_cast<int>(threadIdx.x);
      if (ids[row * kTopk + k] != all_ids[position * kTopk + k]) ++bad;
      if (weights[row * kTopk + k] != weight(position, k)) ++bad;
    }
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x)
      if (x[row * kHidden + h] != payload(position, h)) ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}
__global__ void apply_expert(const std::uint16_t* x, const std::int32_t* rows, int rank, std::uint16_t* out) {
  for (int r = static_cast<int>(blockIdx.x); r < *rows; r += static_cast<int>(gridDim.x))
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x) {
      std::size_t const at = static_cast<std::size_t>(r) * kHidden + h;
      out[at] = result(x[at], rank);
    }
}
//! Compares every sum: fp32, ascending ranks, rounded once.
__global__ void check_sums(std::uint32_t first, const std::int32_t* all_ids, const std::uint16_t* y,
                           const float* weights, unsigned long long* wrong) {
  unsigned long long bad = 0;
  for (std::uint32_t t = blockIdx.x; t < kTokens; t += gridDim.x) {
    const std::int32_t* ids = all_ids + (first + t) * kTopk;
    bool goes[kWorld];
    for (int rank = 0; rank < kWorld; ++rank) goes[rank] = goes_to(ids, rank);
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x) {
      float sum = 0;
      for (int rank = 0; rank < kWorld; ++rank)
        if (goes[rank]) sum = __fadd_rn(sum, widened(result(payload(first + t, h), rank)));
      if (y[std::size_t{t} * kHidden + h] != rounded(sum)) ++bad;
    }
    if (threadIdx.x < kTopk) {
      float sum = 0;
      for (int rank = 0; rank < kWorld; ++rank)
        if (goes[rank]) sum = __fadd_rn(sum, weight(first + t, static_cast<int>(threadIdx.x)));
      if (weights[t * kTopk + threadIdx.x] != sum) ++bad;
    }
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

template <class T>
std::shared_ptr<T> device(std::size_t n) {
  std::byte* memory = Machine::allocate(n * sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return {reinterpret_cast<T*>(memory), [](T* p) { Machine::release(reinterpret_cast<std::byte*>(p), 0); }};
}

//! Eight distinct experts for every token of every rank.
std::vector<std::int32_t> ids_of_all() {
  std::vector<std::int32_t> ids;
  Rng rng(95);
  while (ids.size() < kTokensOfAll * kTopk) {
    auto const first = static_cast<std::ptrdiff_t>(ids.size() / kTopk * kTopk);
    std::int32_t const id = rng.in(0, kWorld * kExpertsPerRank - 1);
    if (std::find(ids.begin() + first, ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

//! The token's sum by the oracle's arithmetic.
std::string check_by_oracle(const std::int32_t* ids, std::uint32_t position, const std::uint16_t* y) {
  using namespace oracle;
  for (std::uint32_t h = 0; h < kHidden; ++h) {
    float sum = 0;
    for (int rank = 0; rank < kWorld; ++rank) {
      if (std::none_of(ids, ids + kTopk, [rank](std::int32_t id) { return id / kExpertsPerRank == rank; })) continue;
      auto const x = static_cast<float>(decode(Format::bf16, payload(position, h)));
      auto const out = encode(Format::bf16, static_cast<double>(multiply(x, slope(rank))));
      sum = add(sum, static_cast<float>(decode(Format::bf16, out)));
    }
    if (y[h] != encode(Format::bf16, static_cast<double>(sum)))
      return "oracle: position " + std::to_string(position) + " element " + std::to_string(h);
  }
  return {};
}

}  // namespace

TEST_CASE("eight ranks at full size: every byte of dispatch and every sum of combine") {
  std::vector<std::int32_t> const all_ids = ids_of_all();
  std::vector<std::string> wrong(kWorld);
  std::vector<unsigned long long> mismatches(kWorld, 0);
  Status const s = LocalWorld(kWorld).run([&](Communicator& comm) -> Status {
    int const rank = comm.rank();
    auto const me = static_cast<std::size_t>(rank);
    if (Status d = Machine::use_device(rank * Machine::device_count() / kWorld); !d.ok()) return d;
    auto ep = Ep::create(comm, {.hidden_dim = kHidden,
                                .max_num_inp_token_per_rank = kTokens,
                                .num_experts_per_rank = kExpertsPerRank,
                                .num_experts_per_token = kTopk,
                                .timeout_ms = 20000});
    if (!ep.ok()) return ep.status();
    auto const first = static_cast<std::uint32_t>(rank * kTokens);
    std::vector<std::int32_t> positions;
    for (std::size_t p = 0; p < kTokensOfAll; ++p)
      if (std::any_of(&all_ids[p * kTopk], &all_ids[p * kTopk] + kTopk,
                      [rank](std::int32_t id) { return id / kExpertsPerRank == rank; }))
        positions.push_back(static_cast<std::int32_t>(p));
    int const received = static_cast<int>(positions.size());

    auto const x = device<std::uint16_t>(std::size_t{kTokens} * kHidden),
               y = device<std::uint16_t>(std::size_t{kTokens} * kHidden),
               results = device<std::uint16_t>(positions.size() * kHidden);
    auto const weights = device<float>(kTokens * kTopk), weights_out = device<float>(kTokens * kTopk);
    auto const ids = device<std::int32_t>(all_ids.size()), at = device<std::int32_t>(positions.size());
    auto const bad = device<unsigned long long>(1);
    copy_now(ids.get(), all_ids.data(), all_ids.size() * sizeof(std::int32_t));
    copy_now(at.get(), positions.data(), positions.size() * sizeof(std::int32_t));
    Stream stream;
    make_input<<<256, 256, 0, stream.handle()>>>(first, x.get(), weights.get());
    for (int round = 0; round < 3; ++round) {
      launch::LaunchParams const launch = round == 2 ? launch::LaunchParams{12, 7} : launch::LaunchParams{};
      auto got = ep->dispatch({.input = {reinterpret_cast<const bf16*>(x.get()), kTokens, kHidden},
                               .indices = {ids.get() + first * kTopk, kTokens, kTopk},
                               .weights = {weights.get(), kTokens, kTopk},
                               .launch = launch},
                              stream);
      if (!got.ok()) return got.status();
      auto const* rows = reinterpret_cast<const std::uint16_t*>(got->rows.data);
      check_rows<<<256, 256, 0, stream.handle()>>>(at.get(), received, got->recv_count,
                                                   ep->get_dispatch_src_token_pos(got->ticket).data, rows,
                                                   got->indices.data, got->weights.data, ids.get(), bad.get());
      auto const registered = ep->get_registered_combine_input_buffer(got->ticket);
      auto* const out = round == 0 ? reinterpret_cast<std::uint16_t*>(registered.data) : results.get();
      apply_expert<<<256, 256, 0, stream.handle()>>>(rows, got->recv_count, rank, out);
      Ep::CombineInputs in{.output = {reinterpret_cast<bf16*>(y.get()), kTokens, kHidden},
                           .weights = {got->weights.data, received, kTopk},
                           .weights_output = {weights_out.get(), kTokens, kTopk},
                           .launch = launch};
      if (round != 0) in.input = {reinterpret_cast<const bf16*>(results.get()), received, kHidden};
      if (Status c = ep->combine(std::move(got->ticket), in, stream); !c.ok()) return c;
      check_sums<<<256, 256, 0, stream.handle()>>>(first, ids.get(), y.get(), weights_out.get(), bad.get());
    }
    stream.synchronize();
    copy_now(&mismatches[me], bad.get(), sizeof(mismatches[me]));
    std::vector<std::uint16_t> row(kHidden);
    Rng rng(mix(96, me));
    for (int i = 0; i < 24 && wrong[me].empty(); ++i) {
      auto const t = static_cast<std::uint32_t>(rng.in(0, kTokens - 1));
      copy_now(row.data(), y.get() + std::size_t{t} * kHidden, kHidden * sizeof(std::uint16_t));
      wrong[me] = check_by_oracle(&all_ids[(first + t) * kTopk], first + t, row.data());
    }
    return ep->status();
  });
  REQUIRE(s.message() == "ok");
  for (const std::string& w : wrong) CHECK(w == "");
  for (unsigned long long const n : mismatches) CHECK(n == 0);
}

}  // namespace mori_ep::test
