// SPDX-License-Identifier: MIT
// What outlives what: memory of any content, tickets of others, operators that go while work is pending, kept routings
// of device-side counts and of failed dispatches, and the way back when only some ranks know of a fault.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"

namespace mori_ep::test {
namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, Machine>;
constexpr int kTokens = 8, kHidden = 16;

EpDispatchCombineConfig config_of(int topk, std::int64_t timeout_ms = 10000) {
  return {.hidden_dim = kHidden,
          .max_num_inp_token_per_rank = kTokens,
          .num_experts_per_rank = 1,
          .num_experts_per_token = topk,
          .timeout_ms = timeout_ms};
}

//! Tokens of one rank; the stream is declared last, so that it ends before what it works on.
struct Rank {
  explicit Rank(int topk, std::int32_t expert = 0)
      : x(kTokens * kHidden, 1.0f),
        y(x.size(), -1.0f),
        ids(static_cast<std::size_t>(kTokens * topk), expert),
        k(topk) {}
  Ep::DispatchInputs inputs() { return {.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, k}}; }
  TensorView<float> output() { return {y.data(), kTokens, kHidden}; }

  Vector<float> x, y;
  Vector<std::int32_t> ids;
  int k;
  Stream stream;
};

//! Checks made in ranks' threads; Catch's own are for one thread.
class Expectations {
 public:
  void operator()(bool ok) { failures_ += ok ? 0 : 1; }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  std::atomic<int> failures_{0};
};

}  // namespace

TEST_CASE("caller-provided memory may hold anything") {
  for (int fill : {0x00, 0x01, 0x7f, 0xff}) {
    Expectations expect;
    constexpr int kWorld = 4, kTopk = 4;
    std::size_t const bytes = Ep::footprint(config_of(kTopk), kWorld).value().bytes;
    std::vector<std::shared_ptr<std::byte>> arenas;
    for (int r = 0; r < kWorld; ++r) {
      arenas.emplace_back(Machine::allocate(bytes), [bytes](std::byte* m) { Machine::release(m, bytes); });
      std::vector<std::byte> const content(bytes, static_cast<std::byte>(fill));
      copy_now(arenas.back().get(), content.data(), bytes);
    }
    LocalWorld(kWorld)
        .run([&](Communicator& comm) {
          auto* memory = arenas[static_cast<std::size_t>(comm.rank())].get();
          auto ep = Ep::create(comm, config_of(kTopk), {memory, bytes}).value();
          Rank r(kTopk, -1);
          for (int t = 0; t < kTokens; ++t) r.ids[static_cast<std::size_t>(t * kTopk)] = (comm.rank() + 1) % kWorld;
          auto got = ep.dispatch(r.inputs(), r.stream).value();
          ep.combine(std::move(got.ticket), {.input = got.rows, .output = r.output()}, r.stream).or_throw();
          r.stream.synchronize();
          for (float v : r.y) expect(v == 1.0f);
        })
        .or_throw();
    INFO("fill " << fill);
    CHECK(expect.failures() == 0);
  }
}

TEST_CASE("views of another operator's or a used-up ticket are empty") {
  LocalWorld(1)
      .run([](Communicator& comm) {
        auto config = config_of(1);
        auto one = Ep::create(comm, config).value();
        config.num_buffer_sets = 2;
        auto two = Ep::create(comm, config).value();
        Rank r(1);
        auto first = two.dispatch(r.inputs(), r.stream).value();
        auto second = two.dispatch(r.inputs(), r.stream).value();
        CHECK(one.get_registered_combine_input_buffer(second.ticket).empty());
        CHECK(one.get_dispatch_src_token_pos(second.ticket).empty());
        CHECK(one.get_registered_combine_input_buffer(Ep::Ticket{}).empty());
        CHECK(!two.get_registered_combine_input_buffer(second.ticket).empty());
        r.stream.synchronize();
      })
      .or_throw();
}

#if !defined(MORI_EP_GPU)  // there, freeing waits for the launch
TEST_CASE("an operator that gives up on a launch frees nothing that the launch may use") {
  std::atomic<bool> go{false}, peer_gone{false};
  LocalWorld(2)
      .run([&](Communicator& comm) {
        auto config = config_of(1, 20);
        if (comm.rank() == 1) {
          { auto ep = Ep::create(comm, config).value(); }
          peer_gone = true;
          return;
        }
        Rank r(1);
        r.stream.submit([&go] {
          while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
        {
          auto ep = Ep::create(comm, config).value();
          (void)ep.dispatch(r.inputs(), r.stream).value();
        }  // after 8 timeouts the memory is left to the launch that has not begun
        while (!peer_gone) std::this_thread::yield();
        go = true;
        r.stream.synchronize();
      })
      .or_throw();
}
#endif

TEST_CASE("a kept routing replays what a device-side token count dispatched, and no more") {
  Expectations expect;
  LocalWorld(2)
      .run([&](Communicator& comm) {
        auto ep = Ep::create(comm, config_of(1)).value();
        Rank r(1, 1);
        Vector<std::int32_t> const count(1, 3);
        auto inputs = r.inputs();
        inputs.token_count = count.data();
        auto got = ep.dispatch(inputs, r.stream).value();
        expect(ep.recv_totals(got.ticket, r.stream).value().recv_count == (comm.rank() == 1 ? 6 : 0));
        auto kept = ep.keep(got.ticket, r.stream).value();
        ep.combine(std::move(got.ticket), {.input = got.rows, .output = r.output()}, r.stream).or_throw();
        auto again = ep.dispatch({.input = {r.x.data(), kTokens, kHidden}, .routing = &kept}, r.stream).value();
        expect(ep.recv_totals(again.ticket, r.stream).value().recv_count == (comm.rank() == 1 ? 6 : 0));
      })
      .or_throw();
  CHECK(expect.failures() == 0);
}

TEST_CASE("a device-side token count past the input is named, and a kept routing does not outlive a recover") {
  LocalWorld(1)
      .run([](Communicator& comm) {
        auto ep = Ep::create(comm, config_of(1)).value();
        Rank r(1);
        auto first = ep.dispatch(r.inputs(), r.stream).value();
        auto kept = ep.keep(first.ticket, r.stream).value();
        first.ticket = {};
        Vector<std::int32_t> const count(1, kTokens + 1);
        auto inputs = r.inputs();
        inputs.token_count = count.data();
        (void)ep.dispatch(inputs, r.stream).value();
        r.stream.synchronize();
        CHECK(ep.status().code() == Errc::invalid_argument);
        CHECK(std::string(ep.status().error().field) == "token_count");
        CHECK(ep.status().error().value == kTokens + 1);
        CHECK(ep.status().error().limit == kTokens);
        REQUIRE(ep.recover(r.stream).ok());
        auto replay = ep.dispatch({.input = {r.x.data(), kTokens, kHidden}, .routing = &kept}, r.stream);
        CHECK(replay.error().code == Errc::wrong_ticket);
        CHECK(ep.dispatch(r.inputs(), r.stream).ok());
        r.stream.synchronize();
      })
      .or_throw();
}

TEST_CASE("recover is collective whoever knows of the fault, and a rank that came too early finds the others again") {
  Expectations expect;
  std::atomic<int> failed{0};
  LocalWorld(3, 0, std::chrono::seconds(10))
      .run([&](Communicator& comm) {
        auto ep = Ep::create(comm, config_of(1, 200)).value();
        Rank r(1);
        if (comm.rank() == 2) {
          expect(ep.reset(r.stream).ok());  // no fault is known yet: nothing happens
          while (failed != 2) std::this_thread::yield();
        } else {
          (void)ep.dispatch(r.inputs(), r.stream).value();
          r.stream.synchronize();
          expect(!ep.status().ok());
          ++failed;
        }
        expect(ep.recover(r.stream).ok());
        for (int i = 0; i < 2; ++i) {
          auto got = ep.dispatch(r.inputs(), r.stream).value();
          ep.combine(std::move(got.ticket), {.input = got.rows, .output = r.output()}, r.stream).or_throw();
        }
        r.stream.synchronize();
        expect(ep.status().ok());
        for (float v : r.y) expect(v == 1.0f);
      })
      .or_throw();
  CHECK(expect.failures() == 0);
}

TEST_CASE("weights that are asked for must be given by whoever has rows") {
  LocalWorld(1)
      .run([](Communicator& comm) {
        auto ep = Ep::create(comm, config_of(1)).value();
        Vector<float> weights(kTokens);
        Rank r(1);
        auto got = ep.dispatch(r.inputs(), r.stream).value();
        ep.combine(std::move(got.ticket), {.output = r.output(), .weights_output = {weights.data(), kTokens, 1}},
                   r.stream)
            .or_throw();
        r.stream.synchronize();
        CHECK(ep.status().code() == Errc::invalid_argument);
        CHECK(std::string(ep.status().error().field) == "combine weights rows");
      })
      .or_throw();
}

TEST_CASE("a view with rows and no memory, or of the registered buffer in another shape, is refused") {
  LocalWorld(1)
      .run([](Communicator& comm) {
        auto ep = Ep::create(comm, config_of(1)).value();
        Rank r(1);
        auto inputs = r.inputs();
        inputs.weights = {nullptr, kTokens, 1};
        CHECK(ep.dispatch(inputs, r.stream).error().code == Errc::invalid_argument);
        auto got = ep.dispatch(r.inputs(), r.stream).value();
        auto const refuses = [&](TensorView<const float> input) {
          return ep.combine(std::move(got.ticket), {.input = input, .output = r.output()}, r.stream).code() ==
                 Errc::invalid_argument;
        };
        auto const registered = ep.get_registered_combine_input_buffer(got.ticket);
        CHECK(refuses({nullptr, kTokens, kHidden}));
        CHECK(refuses({registered.data, kTokens, kHidden, kHidden + 4}));
        CHECK(refuses({r.x.data(), -1, kHidden}));
        CHECK(ep.combine(std::move(got.ticket), {.input = registered, .output = r.output()}, r.stream).ok());
        r.stream.synchronize();
      })
      .or_throw();
}

TEST_CASE("ranks of different types get one verdict, and a world of no ranks is refused") {
  using Half = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, Machine>;
  std::vector<Status> verdicts(2);
  LocalWorld(2)
      .run([&](Communicator& comm) {
        auto config = config_of(1);
        config.hidden_dim = 4;  // a row of 16 bytes for one type, too short for the other
        auto& verdict = verdicts[static_cast<std::size_t>(comm.rank())];
        verdict = comm.rank() == 0 ? Ep::create(comm, config).status() : Half::create(comm, config).status();
      })
      .or_throw();
  CHECK(verdicts[0].code() == Errc::protocol_mismatch);
  CHECK(verdicts[0].message() == verdicts[1].message());
  CHECK(LocalWorld(0).run([](Communicator&) {}).code() == Errc::invalid_config);
  CHECK(LocalWorld(2, 0, std::chrono::nanoseconds::max()).run([](Communicator& comm) { return comm.barrier(); }).ok());
}

}  // namespace mori_ep::test
