// SPDX-License-Identifier: MIT
// Dispatch, experts and combine captured once and replayed: inputs and token counts change between replays, eager calls
// come in between, two graphs work on one operator; an operator is not made inside a capture.
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"
#include "support/random.hpp"

namespace mori_ep::test {
namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, Machine>;
constexpr int kWorld = 4, kTokens = 24, kHidden = 64, kTopk = 3, kExpertsPerRank = 2, kCalls = 40;
constexpr std::size_t kX = std::size_t{kTokens} * kHidden, kIds = std::size_t{kTokens} * kTopk;

//! Integers, so that sums are exact whatever their order: that is other tests' business.
__global__ void multiply_rows(const float* rows, const std::int32_t* count, float factor, float* out) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < *count * kHidden;
       i += static_cast<int>(gridDim.x * blockDim.x))
    out[i] = rows[i] * factor;
}
float factor_of(int rank) { return static_cast<float>(rank + 1); }

//! What one rank brings to a call.
struct Input {
  std::int32_t count = 0;
  std::vector<float> x;
  std::vector<std::int32_t> ids;

  static Input make(int call, int rank) {
    Rng rng(mix(static_cast<std::uint64_t>(call), static_cast<std::uint64_t>(rank), 91));
    Input in{.count = rng.one_in(5) ? 0 : rng.in(1, kTokens), .x = std::vector<float>(kX), .ids = {}};
    for (float& v : in.x) v = static_cast<float>(rng.in(-1000, 1000));
    for (std::size_t i = 0; i < kIds; ++i) in.ids.push_back(rng.in(-1, kWorld * kExpertsPerRank - 1));
    return in;
  }
  [[nodiscard]] bool goes_to(int token, int rank) const {
    for (int k = 0; k < kTopk; ++k) {
      std::int32_t const id = ids[static_cast<std::size_t>(token * kTopk + k)];
      if (id >= 0 && id / kExpertsPerRank == rank) return true;
    }
    return false;
  }
};

//! A rank's buffers for one graph, or for eager calls; in device memory, as an engine has them.
struct Buffers {
  template <class T>
  static std::shared_ptr<T> device(std::size_t n) {
    std::byte* memory = Machine::allocate(n * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return {reinterpret_cast<T*>(memory), [](T* p) { Machine::release(reinterpret_cast<std::byte*>(p), 0); }};
  }
  std::shared_ptr<float> x = device<float>(kX), y = device<float>(kX), rows = device<float>(std::size_t{kWorld} * kX);
  std::shared_ptr<std::int32_t> ids = device<std::int32_t>(kIds), count = device<std::int32_t>(1);
  const std::int32_t* recv_count = nullptr;

  //! One round: all of its work goes to `stream`, which may be capturing.
  Status round(Ep& ep, int rank, bool zero_copy, launch::LaunchParams launch, Stream& stream) {
    auto got = ep.dispatch({.input = {x.get(), kTokens, kHidden},
                            .indices = {ids.get(), kTokens, kTopk},
                            .token_count = count.get(),
                            .launch = launch},
                           stream.handle());
    if (!got.ok()) return got.status();
    recv_count = got->recv_count;
    float* const results = zero_copy ? ep.get_registered_combine_input_buffer(got->ticket).data : rows.get();
    multiply_rows<<<4, 64, 0, stream.handle()>>>(got->rows.data, recv_count, factor_of(rank), results);
    Ep::CombineInputs in{.output = {y.get(), kTokens, kHidden}, .launch = launch};
    if (!zero_copy) in.input = {rows.get(), ep.capacity(), kHidden};
    return ep.combine(std::move(got->ticket), in, stream.handle());
  }
};

class Graph {
 public:
  template <class Work>
  static Status capture(Stream& stream, Graph& out, Work&& work) {
    expect_success(MORI_EP_RT(StreamBeginCapture)(stream.handle(), MORI_EP_RT(StreamCaptureModeThreadLocal)),
                   "capture");
    Status const s = work();
    expect_success(MORI_EP_RT(StreamEndCapture)(stream.handle(), &out.graph_), "end of capture");
    expect_success(MORI_EP_RT(GraphInstantiateWithFlags)(&out.exec_, out.graph_, 0), "graph");
    expect_success(MORI_EP_RT(GraphUpload)(out.exec_, stream.handle()), "upload");
    return s;
  }
  void replay(Stream& stream) const { expect_success(MORI_EP_RT(GraphLaunch)(exec_, stream.handle()), "replay"); }
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (exec_ != nullptr) (void)MORI_EP_RT(GraphExecDestroy)(exec_);
    if (graph_ != nullptr) (void)MORI_EP_RT(GraphDestroy)(graph_);
  }

 private:
  MORI_EP_RT(Graph_t) graph_ = nullptr;
  MORI_EP_RT(GraphExec_t) exec_ = nullptr;
};

//! One rank's call as memory that streams copy from and to.
struct Record {
  Vector<float> x = Vector<float>(kX), y = Vector<float>(kX, -1.0f), blank = Vector<float>(kX, -1.0f);
  Vector<std::int32_t> ids = Vector<std::int32_t>(kIds), count = Vector<std::int32_t>(1),
                       received = Vector<std::int32_t>(1, -1);
};

std::string compare(int call, int rank, const Record& record) {
  std::vector<Input> inputs;
  for (int r = 0; r < kWorld; ++r) inputs.push_back(Input::make(call, r));
  auto const at = "call " + std::to_string(call) + " rank " + std::to_string(rank) + ": ";
  int received = 0;
  for (const Input& in : inputs)
    for (int t = 0; t < in.count; ++t) received += in.goes_to(t, rank) ? 1 : 0;
  if (record.received[0] != received)
    return at + "received " + std::to_string(record.received[0]) + ", expected " + std::to_string(received);
  const Input& mine = inputs[static_cast<std::size_t>(rank)];
  for (int t = 0; t < kTokens; ++t) {
    float factor = 0;
    for (int r = 0; r < kWorld; ++r) factor += mine.goes_to(t, r) ? factor_of(r) : 0;
    for (int h = 0; h < kHidden; ++h) {
      auto const i = static_cast<std::size_t>(t * kHidden + h);
      float const expected = t < mine.count ? mine.x[i] * factor : -1.0f;
      if (record.y[i] != expected)
        return at + "token " + std::to_string(t) + " is " + std::to_string(record.y[i]) + ", expected " +
               std::to_string(expected);
    }
  }
  return {};
}

}  // namespace

TEST_CASE("two graphs of one operator replay with changing inputs and token counts, eager calls between them") {
  for (int sets : {1, 2}) {
    std::vector<std::string> wrong(kWorld);
    Status const s = LocalWorld(kWorld).run([&](Communicator& comm) -> Status {
      int const rank = comm.rank();
      Stream stream;
      auto ep = Ep::create(comm, {.hidden_dim = kHidden,
                                  .max_num_inp_token_per_rank = kTokens,
                                  .num_experts_per_rank = kExpertsPerRank,
                                  .num_experts_per_token = kTopk,
                                  .num_buffer_sets = sets,
                                  .timeout_ms = 20000});
      if (!ep.ok()) return ep.status();
      Buffers buffers[3];
      Graph graphs[2];
      std::vector<Record> records(kCalls);
      for (int call = 0; call < kCalls; ++call) {
        Input const in = Input::make(call, rank);
        Record& record = records[static_cast<std::size_t>(call)];
        record.x.assign(in.x.begin(), in.x.end());
        record.ids.assign(in.ids.begin(), in.ids.end());
        record.count[0] = in.count;
      }
      for (int g = 0; g < 2; ++g) {
        Status const captured = Graph::capture(stream, graphs[g], [&] {
          return buffers[g].round(*ep, rank, g == 0, g == 0 ? launch::LaunchParams{} : launch::LaunchParams{3, 2},
                                  stream);
        });
        if (!captured.ok()) return captured;
      }
      stream.synchronize();
      if (Status b = comm.barrier(); !b.ok()) return b;
      Rng order(mix(92));  // the same on every rank
      for (int call = 0; call < kCalls; ++call) {
        Record& record = records[static_cast<std::size_t>(call)];
        int const kind = order.in(0, 2);
        Buffers& b = buffers[kind];
        stream.copy(b.x.get(), record.x.data(), kX * sizeof(float));
        stream.copy(b.ids.get(), record.ids.data(), kIds * sizeof(std::int32_t));
        stream.copy(b.count.get(), record.count.data(), sizeof(std::int32_t));
        stream.copy(b.y.get(), record.blank.data(), kX * sizeof(float));
        if (kind < 2)
          graphs[kind].replay(stream);
        else if (Status r = b.round(*ep, rank, call % 2 == 0, {}, stream); !r.ok())
          return r;
        stream.copy(record.y.data(), b.y.get(), kX * sizeof(float));
        stream.copy(record.received.data(), b.recv_count, sizeof(std::int32_t));
      }
      stream.synchronize();
      for (int call = 0; call < kCalls && wrong[static_cast<std::size_t>(rank)].empty(); ++call)
        wrong[static_cast<std::size_t>(rank)] = compare(call, rank, records[static_cast<std::size_t>(call)]);
      return ep->status();
    });
    INFO(sets << " buffer sets");
    for (const std::string& w : wrong) CHECK(w == "");
    REQUIRE(s.message() == "ok");
  }
}

TEST_CASE("an operator is not made inside a capture: the same named error on every rank") {
  constexpr EpDispatchCombineConfig kConfig{.hidden_dim = kHidden,
                                            .max_num_inp_token_per_rank = kTokens,
                                            .num_experts_per_rank = kExpertsPerRank,
                                            .num_experts_per_token = kTopk};
  for (auto const mode : {MORI_EP_RT(StreamCaptureModeThreadLocal), MORI_EP_RT(StreamCaptureModeGlobal)})
    for (int capturing : {0, 2, -1}) {  // the rank that captures, or all
      std::vector<Status> verdicts(kWorld);
      Status const s = LocalWorld(kWorld, 0, std::chrono::seconds(10)).run([&](Communicator& comm) -> Status {
        bool const captures = capturing < 0 || comm.rank() == capturing;
        Stream stream;
        MORI_EP_RT(Graph_t) graph = nullptr;
        if (Status b = comm.barrier(); !b.ok()) return b;
        if (captures) expect_success(MORI_EP_RT(StreamBeginCapture)(stream.handle(), mode), "capture");
        if (Status b = comm.barrier(); !b.ok()) return b;
        verdicts[static_cast<std::size_t>(comm.rank())] = Ep::create(comm, kConfig).status();
        if (Status b = comm.barrier(); !b.ok()) return b;
        if (captures) {
          (void)MORI_EP_RT(StreamEndCapture)(stream.handle(), &graph);  // void by now
          (void)MORI_EP_RT(GetLastError)();
        }
        if (Status b = comm.barrier(); !b.ok()) return b;
        return Ep::create(comm, kConfig).status();
      });
      REQUIRE(s.message() == "ok");
      for (const Status& v : verdicts) {
        INFO(v.message());
        CHECK(v.code() == Errc::device_error);
        CHECK(std::string(v.error().field) == "stream capture");
        CHECK(v.message() == verdicts[0].message());
        if (capturing >= 0 && mode == MORI_EP_RT(StreamCaptureModeThreadLocal)) CHECK(v.error().rank == capturing);
      }
    }
}

}  // namespace mori_ep::test
