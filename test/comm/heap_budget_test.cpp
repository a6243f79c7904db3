// SPDX-License-Identifier: MIT
// MORI_SHMEM_HEAP_SIZE: what an operator needs of it, what it gives back, and who hears of it.
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"

namespace mori_ep::test {
namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;
constexpr EpDispatchCombineConfig kConfig{
    .hidden_dim = 64, .max_num_inp_token_per_rank = 8, .num_experts_per_rank = 2, .num_experts_per_token = 2};

Environment with_heap(std::int64_t bytes) {
  std::string const text = std::to_string(bytes);
  return Environment::parse(
             [&](std::string_view name) { return name == "MORI_SHMEM_HEAP_SIZE" ? text.c_str() : nullptr; })
      .value();
}
std::int64_t needed(int world) { return static_cast<std::int64_t>(Ep::footprint(kConfig, world).value().bytes); }

}  // namespace

TEST_CASE("a heap of exactly what operators need is enough, a byte less is an error that names what is needed") {
  for (int operators : {1, 2, 3})
    for (std::int64_t short_of : {0, 1}) {
      std::int64_t const total = operators * needed(2);
      std::vector<std::string> said(2);
      Status const s =
          LocalWorld(2, 0, std::chrono::seconds(60), with_heap(total - short_of)).run([&](Communicator& c) {
            std::vector<Ep> kept;
            for (int i = 0; i < operators; ++i) {
              auto ep = Ep::create(c, kConfig);
              said[static_cast<std::size_t>(c.rank())] = ep.status().message();
              if (ep.ok() != (i + 1 < operators || short_of == 0)) return Status{Error{.code = Errc::invalid_config}};
              if (ep.ok()) kept.push_back(std::move(*ep));
            }
            return Status{};
          });
      INFO(operators << " operators, short of " << short_of << ": " << said[0]);
      REQUIRE(s.ok());
      REQUIRE(said[0] == said[1]);
      if (short_of == 0) continue;
      REQUIRE(said[0].find("out of memory in create: MORI_SHMEM_HEAP_SIZE is " + std::to_string(total - 1) +
                           ", limit " + std::to_string(total)) != std::string::npos);
    }
}

TEST_CASE("what an operator took of the heap is there again when it is gone, also through a group") {
  Status const s = LocalWorld(2, 0, std::chrono::seconds(60), with_heap(needed(2))).run([&](Communicator& c) -> Status {
    auto const group = c.sub(std::vector<int>{0, 1});
    if (!group.ok()) return group.status();
    for (int i = 0; i < 3; ++i) {
      auto ep = Ep::create(i == 1 ? *group : c, kConfig);
      if (!ep.ok()) return ep.status();
      if (c.heap()->used() != needed(2)) return Error{.code = Errc::invalid_config, .field = "used"};
      if (Ep::create(i == 0 ? *group : c, kConfig).status().code() != Errc::out_of_memory)
        return Error{.code = Errc::invalid_config, .field = "second operator"};
      Ep moved = std::move(*ep);
      if (c.heap()->used() != needed(2)) return Error{.code = Errc::invalid_config, .field = "used after a move"};
    }
    return c.heap()->used() == 0 ? Status() : Error{.code = Errc::invalid_config, .field = "used at the end"};
  });
  REQUIRE(s.message() == "ok");
}

TEST_CASE("memory that the caller brings takes nothing of the heap") {
  Status const s = LocalWorld(2, 0, std::chrono::seconds(60), with_heap(1)).run([&](Communicator& c) -> Status {
    auto const bytes = static_cast<std::size_t>(needed(2));
    std::byte* const memory = exec::Host::allocate(bytes);
    Status created;
    {
      auto const ep = Ep::create(c, kConfig, {memory, bytes});
      created = ep.status();
      if (c.heap()->used() != 0) created = Error{.code = Errc::invalid_config, .field = "used"};
      (void)c.barrier();
    }
    (void)c.barrier();
    exec::Host::release(memory, bytes);
    return created;
  });
  REQUIRE(s.message() == "ok");
}

TEST_CASE("one rank's heap that is too small is every rank's error") {
  auto const ends = mesh(3, std::chrono::seconds(60));
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      auto comm =
          Communicator::create(ends[static_cast<std::size_t>(r)], r == 1 ? with_heap(needed(3) - 1) : Environment());
      said[static_cast<std::size_t>(r)] = comm.ok() ? Ep::create(*comm, kConfig).status().message() : comm.message();
    });
  for (auto& thread : threads) thread.join();
  CHECK(said[0].find("rank 1: out of memory in create: MORI_SHMEM_HEAP_SIZE is") != std::string::npos);
  CHECK(said[1] == said[0]);
  CHECK(said[2] == said[0]);
}

}  // namespace mori_ep::test
