// SPDX-License-Identifier: MIT
// The fabric over a fake table of verbs, which every machine has, and over a device, where there is one.
#include "mori_ep/fabric/verbs.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/verbs_mesh/rank.hpp"
#include "mori_ep/comm/local_world.hpp"
#include "support/catch.hpp"
#include "support/fake_verbs.hpp"

namespace mori_ep::test {

#if MORI_EP_HAS_VERBS

using fabric::Completion;
using fabric::Operation;
using fabric::Verbs;
using fabric::WorkRequest;

namespace {

struct alignas(64) Memory {
  std::array<std::byte, 1 << 20> bytes{};
  [[nodiscard]] Verbs::Arena arena() { return {bytes.data(), bytes.size()}; }
};

Result<Verbs> connect(const comm::Communicator& comm, Memory& memory, const Verbs::Options& options = {}) {
  FakeVerbs::rank = comm.rank();
  return Verbs::connect(comm, memory.arena(), options, FakeVerbs::api());
}

//! What each rank of a world is told when it connects.
std::vector<std::string> told(int world, const std::function<Verbs::Options(int rank)>& options) {
  std::vector<std::string> messages(static_cast<std::size_t>(world));
  std::vector<Memory> memory(static_cast<std::size_t>(world));
  comm::LocalWorld(world)
      .run([&](comm::Communicator& comm) -> Status {
        auto const r = static_cast<std::size_t>(comm.rank());
        messages[r] = connect(comm, memory[r], options(comm.rank())).message();
        return {};
      })
      .or_throw();
  return messages;
}
void require_told(const std::vector<std::string>& messages, const std::string& text) {
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message == messages[0]);
    CHECK(message.find(text) != std::string::npos);
  }
}
bool nothing_left(const FakeVerbs& fake) { return fake.live == 0 && fake.misuse == 0; }

Status play(int world, const MeshOptions& mesh) {
  return comm::LocalWorld(world).run([&](comm::Communicator& comm) -> Status {
    FakeVerbs::rank = comm.rank();
    return MeshRank(comm, mesh).run({}, [&](const auto& arena, const auto& options) {
      return Verbs::connect(comm, arena, options, FakeVerbs::api());
    });
  });
}

//! Posts all, and polls until all have completed.
std::vector<Completion> complete(Verbs& fabric, std::vector<WorkRequest> requests) {
  std::vector<Completion> all;
  Completion some[3];
  std::size_t const wanted = requests.size();
  for (int idle = 0; all.size() < wanted && idle < 10000; ++idle) {
    std::size_t const taken = fabric.post(requests);
    requests.erase(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(taken));
    std::size_t const n = fabric.poll(some);
    all.insert(all.end(), some, some + n);
    if (n > 0) idle = 0;
  }
  REQUIRE(all.size() == wanted);
  REQUIRE(fabric.poll(some) == 0);
  return all;
}
WorkRequest request(Operation operation, std::uint8_t queue_pair, std::uint16_t sequence, std::uint64_t bytes = 8) {
  return {.id = {.operation = operation, .queue_pair = queue_pair, .sequence = sequence, .epoch = 7},
          .local_offset = 4096,
          .remote_offset = 1 << 19,
          .bytes = bytes,
          .signal_offset = 8,
          .signal = sequence};
}

}  // namespace

TEST_CASE("worlds of threads: every byte and every completion, whatever the device refuses") {
  for (int const world : {1, 2, 4})
    for (int const refuse_one_in : {0, 2, 9})
      for (int const depth : {1, 5, 128}) {
        FakeVerbs fake;
        fake.refuse_one_in = refuse_one_in;
        fake.max_message = 4096;
        fake.max_cqe = depth == 5 ? 40 : 1 << 15;  // several completion queues
        fake.seed = static_cast<std::uint64_t>(world * 1000 + refuse_one_in);
        CAPTURE(world, refuse_one_in, depth);
        MeshOptions const mesh{
            .rounds = scaled(60, 10), .queue_pairs = 3, .depth = depth, .seed = fake.seed, .quiet = true};
        Status const played = play(world, mesh);
        CHECK(played.message() == "ok");
        CHECK(nothing_left(fake));
        CHECK(fake.told < fake.written);
        for (int const access : fake.access) CHECK((access & ~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) == 0);
      }
}

TEST_CASE("puts of more parts than a queue holds, of one byte, of none") {
  FakeVerbs fake;
  fake.max_message = 4096;
  comm::LocalWorld(1)
      .run([&](comm::Communicator& comm) -> Status {
        for (int const depth : {1, 3, 100}) {
          Memory memory;
          Verbs::Options options;
          options.depth = depth;
          auto fabric = connect(comm, memory, options);
          REQUIRE(fabric.message() == "ok");
          int const before = fake.written;
          fill_run(memory.bytes.data() + 4096, 400'000, 1);
          std::vector<WorkRequest> requests;
          for (std::uint64_t const bytes : {0, 1, 400'000, 4096, 4097, 0})
            requests.push_back(request(requests.size() % 2 == 0 ? Operation::put : Operation::put_signal, 0,
                                       static_cast<std::uint16_t>(requests.size()), bytes));
          auto const done = complete(*fabric, requests);
          for (std::size_t i = 0; i < done.size(); ++i) REQUIRE((done[i].status.ok() && done[i].id == requests[i].id));
          REQUIRE(std::equal(memory.bytes.begin() + 4096, memory.bytes.begin() + 404'096,
                             memory.bytes.begin() + (1 << 19)));
          REQUIRE(fake.written - before == 1 + 2 + 98 + 2 + 2 + 1);
          const fabric::Counters& counters = fabric->counters(0);
          REQUIRE((counters.bytes == 408'194 && counters.messages == 6 && counters.completions == 6));
          REQUIRE((counters.errors == 0 && (counters.refusals > 0) == (depth < 6)));
        }
        return {};
      })
      .or_throw();
  CHECK(nothing_left(fake));
}

TEST_CASE("requests of another queue pair, or of none, are not taken along") {
  FakeVerbs fake;
  Memory memory;
  auto fabric = connect(
      comm::Communicator(
          std::make_shared<comm::ThreadBootstrap>(std::make_shared<comm::ThreadHub>(1, std::chrono::seconds(5)), 0), 1),
      memory);
  REQUIRE(fabric.message() == "ok");
  REQUIRE(fabric->post(std::vector{request(Operation::signal, 0, 1), request(Operation::signal, 1, 1)}) == 1);
  REQUIRE(fabric->post(std::vector{request(Operation::signal, 4, 1)}) == 0);
  WorkRequest stranger = request(Operation::signal, 0, 1);
  stranger.id.peer = 1;
  REQUIRE(fabric->post(std::vector{stranger}) == 0);
  REQUIRE(fabric->post({}) == 0);
}

TEST_CASE("a queue pair that dies: its requests say so, one by one; others go on") {
  for (bool const at_post : {false, true}) {
    FakeVerbs fake;
    fake.seed = 5;
    comm::LocalWorld(1)
        .run([&](comm::Communicator& comm) -> Status {
          Memory memory;
          Verbs::Options options;
          options.num_qp_per_pe = 2;
          options.depth = 64;
          auto fabric = connect(comm, memory, options);
          REQUIRE(fabric.message() == "ok");
          std::vector<WorkRequest> first, second, other;
          for (std::uint16_t i = 0; i < 10; ++i) first.push_back(request(Operation::put_signal, 1, i));
          for (std::uint16_t i = 10; i < 200; ++i) second.push_back(request(Operation::put_signal, 1, i));
          for (std::uint16_t i = 0; i < 200; ++i) other.push_back(request(Operation::signal, 0, i));
          for (const Completion& done : complete(*fabric, first)) REQUIRE(done.status.ok());
          int const number = static_cast<int>(fake.next_number) - 1;  // of the last that was made
          (at_post ? fake.invalid_write : fake.dead_queue_pair) = number;
          auto const failed = complete(*fabric, second);
          for (std::size_t i = 0; i < failed.size(); ++i) {
            REQUIRE(failed[i].id == second[i].id);
            Error const& error = failed[i].status.error();
            INFO(error.message());
            REQUIRE((error.code == Errc::fabric_error && error.peer == 0 && error.expected == 7));
            REQUIRE(error.value == (at_post ? EINVAL : IBV_WC_RETRY_EXC_ERR));
            std::string const why = at_post ? "ibv_post_send: Invalid argument" : "transport retry counter exceeded";
            REQUIRE(std::string(error.text) ==
                    "put_signal of epoch 7, queue pair 1: " + std::string(i == 0 ? "" : "flushed after ") + why);
          }
          for (const Completion& done : complete(*fabric, other)) REQUIRE(done.status.ok());
          for (const Completion& done : complete(*fabric, second)) REQUIRE(!done.status.ok());
          REQUIRE((fabric->counters(0).errors == 380 && fabric->counters(0).completions == 210));
          return {};
        })
        .or_throw();
    CHECK(nothing_left(fake));
  }
}

TEST_CASE("bytes outside the peer's arena are the device's to refuse, and named") {
  FakeVerbs fake;
  comm::LocalWorld(1)
      .run([&](comm::Communicator& comm) -> Status {
        Memory memory;
        auto fabric = connect(comm, memory);
        REQUIRE(fabric.message() == "ok");
        WorkRequest outside = request(Operation::put, 2, 1);
        outside.remote_offset = memory.bytes.size() - 4;
        auto const done = complete(*fabric, {outside});
        REQUIRE(done[0].status.message().find("put of epoch 7, queue pair 2: remote access error") !=
                std::string::npos);
        return {};
      })
      .or_throw();
}

TEST_CASE("a device that says nothing more: requests end with its error") {
  FakeVerbs fake;
  comm::LocalWorld(1)
      .run([&](comm::Communicator& comm) -> Status {
        Memory memory;
        auto fabric = connect(comm, memory);
        REQUIRE(fabric.message() == "ok");
        fake.failing_call = "ibv_poll_cq";
        auto const done = complete(*fabric, {request(Operation::put, 2, 1), request(Operation::put, 2, 2)});
        for (const Completion& each : done)
          REQUIRE(each.status.message().find("ibv_poll_cq failed") != std::string::npos);
        return {};
      })
      .or_throw();
  CHECK(nothing_left(fake));
}

TEST_CASE("whichever call fails on whichever rank, all get its name, and nothing is left") {
  struct Failing {
    const char *call, *said;
    int works_before;
  };
  for (Failing const& f :
       {Failing{"ibv_get_device_list", "ibv_get_device_list", 0}, Failing{"ibv_open_device", "ibv_open_device", 0},
        Failing{"ibv_query_device", "ibv_query_device", 0}, Failing{"ibv_query_port", "ibv_query_port", 0},
        Failing{"ibv_alloc_pd", "ibv_alloc_pd", 0}, Failing{"ibv_reg_mr", "ibv_reg_mr is", 0},
        Failing{"ibv_reg_mr", "ibv_reg_mr of the signals", 1}, Failing{"ibv_create_cq", "ibv_create_cq", 0},
        Failing{"ibv_create_cq", "ibv_create_cq", 1}, Failing{"ibv_create_qp", "ibv_create_qp", 5},
        Failing{"INIT", "ibv_modify_qp to INIT", 3}, Failing{"RTR", "ibv_modify_qp to RTR", 7},
        Failing{"RTS", "ibv_modify_qp to RTS", 0}})
    for (int const rank : {0, 2}) {
      CAPTURE(f.said, f.works_before, rank);
      FakeVerbs fake;
      fake.max_cqe = 512;  // two queue pairs a completion queue
      fake.failing_call = f.call;
      fake.failing_rank = rank;
      fake.works_before = f.works_before;
      auto const messages = told(3, [](int) { return Verbs::Options(); });
      require_told(messages, "rank " + std::to_string(rank) + ": system error in create: " + f.said);
      require_told(messages, "Input/output error");
      if (std::string(f.call) != "ibv_get_device_list") require_told(messages, "(fake0");
      CHECK(nothing_left(fake));
    }
  FakeVerbs fake;
  fake.failing_call = "RTR";
  fake.works_before = 5;
  fake.failing_rank = 1;
  require_told(told(3, [](int) { return Verbs::Options(); }), ", peer rank 1");  // its sixth: 4 a peer
}

TEST_CASE("options and arenas that cannot be, and ranks that differ, are refused on every rank alike") {
  FakeVerbs fake;
  auto const with = [](int rank, auto&& change) {
    return [rank, change](int r) {
      Verbs::Options options;
      if (r == rank) change(options);
      return options;
    };
  };
  require_told(told(2, with(1, [](auto& o) { o.num_qp_per_pe = 65; })), "num_qp_per_pe is 65, limit 64");
  require_told(told(2, with(1, [](auto& o) { o.num_qp_per_pe = 2; })), "num_qp_per_pe is 2, limit 4, peer rank 0");
  require_told(told(2, with(0, [](auto& o) { o.depth = 4096; })), "depth is 4096, limit 4095");
  require_told(told(2, with(0, [](auto& o) { o.ack_timeout = 14; })), "ack_timeout is 14, limit 17");
  require_told(told(3, with(2, [](auto& o) { o.gid_index = 0; })),
               "rank 2: config mismatch in create: network is \"RoCE v2, IPv6 beside RoCE v2, IPv4\"");
  require_told(told(2, with(1, [](auto& o) { (void)o.devices.list.assign("^fake0"); })),
               "rank 1: invalid environment in create: MORI_RDMA_DEVICES is \"^fake0, where there is fake0\"");
  std::vector<std::string> empty_arena(2);
  comm::LocalWorld(2)
      .run([&](comm::Communicator& comm) -> Status {
        Memory memory;
        auto const arena = comm.rank() == 1 ? Verbs::Arena{memory.bytes.data(), 0} : memory.arena();
        empty_arena[static_cast<std::size_t>(comm.rank())] =
            Verbs::connect(comm, arena, {}, FakeVerbs::api()).message();
        return {};
      })
      .or_throw();
  require_told(empty_arena, "rank 1: invalid argument in create: arena bytes is 0, limit 1");
  fake.devices[0].ports[0].state = IBV_PORT_DOWN;
  require_told(told(2, [](int) { return Verbs::Options(); }),
               "RDMA ports that are ACTIVE is \"none: fake0 port 1 is not\"");
  fake.devices.clear();
  require_told(told(2, [](int) { return Verbs::Options(); }), "RDMA devices is \"none\"");
  CHECK(nothing_left(fake));
}

TEST_CASE("what the environment says reaches the queue pairs") {
  FakeVerbs fake;
  fake.devices = {{.name = "fake0", .ports = {{.state = IBV_PORT_DOWN}, {.mtu = IBV_MTU_2048}}}, {.name = "fake1"}};
  auto const environment = Environment::parse([](const std::string& name) -> const char* {
    return name == "MORI_RDMA_DEVICES"    ? "fake1,fake0"
           : name == "MORI_IB_GID_INDEX"  ? "1"
           : name == "MORI_RDMA_TC"       ? "104"
           : name == "MORI_RDMA_SL"       ? "3"
           : name == "MORI_NUM_QP_PER_PE" ? "2"
                                          : nullptr;
  });
  std::vector<Memory> memory(2);
  struct Seen {
    std::string device;
    std::size_t peer_bytes;
    int queue_pairs, world, rank, mtu;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen(2);
  comm::LocalWorld(2)
      .run([&](comm::Communicator& comm) -> Status {
        auto const r = static_cast<std::size_t>(comm.rank());
        auto const fabric = connect(comm, memory[r], Verbs::Options(*environment));
        if (!fabric.ok()) return fabric.status();
        seen[r] = {std::string(fabric->device()),
                   fabric->arena_bytes(1),
                   fabric->queue_pairs(),
                   fabric->world(),
                   fabric->rank(),
                   static_cast<int>(fabric->mtu(0))};
        return comm.barrier();
      })
      .or_throw();
  REQUIRE(seen[0] == Seen{"fake1 port 1, GID 1 ::ffff:10.0.0.1", 1 << 20, 2, 2, 0, 4096});
  REQUIRE(seen[1] == Seen{"fake0 port 2, GID 1 ::ffff:10.0.0.1", 1 << 20, 2, 2, 1, 2048});
  REQUIRE((fake.to_rtr.size() == 8 && fake.to_rts.size() == 8));
  int smaller = 0;
  for (const ibv_qp_attr& a : fake.to_rtr) {
    REQUIRE((a.ah_attr.is_global == 1 && a.ah_attr.grh.hop_limit == 64 && a.ah_attr.grh.traffic_class == 104));
    REQUIRE((a.ah_attr.sl == 3 && a.ah_attr.grh.sgid_index == 1));
    smaller += a.path_mtu == IBV_MTU_2048 ? 1 : 0;
  }
  REQUIRE(smaller == 6);  // all paths but that of rank 0 to itself
  for (const ibv_qp_attr& a : fake.to_rts) {
    REQUIRE((a.timeout == 17 && a.retry_cnt == 6 && a.rnr_retry == 7));
    auto const same_start = [&](const ibv_qp_attr& r) { return r.rq_psn == a.sq_psn; };
    REQUIRE(std::count_if(fake.to_rtr.begin(), fake.to_rtr.end(), same_start) == 1);
  }
}

TEST_CASE("InfiniBand: by LID in one subnet, by GID where the environment names one") {
  for (bool const by_gid : {false, true}) {
    FakeVerbs fake;
    fake.devices[0].ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
    fake.devices[0].ports[0].gids = {{IBV_GID_TYPE_IB, "fe80::2:c903:1:1"}};
    require_told(told(2,
                      [&](int) {
                        Verbs::Options options;
                        if (by_gid) options.gid_index = 0;
                        return options;
                      }),
                 "ok");
    REQUIRE(fake.to_rtr.size() == 16);
    for (const ibv_qp_attr& a : fake.to_rtr)
      REQUIRE((a.ah_attr.is_global == (by_gid ? 1 : 0) && a.ah_attr.dlid == 3 && a.ah_attr.port_num == 1));
    CHECK(nothing_left(fake));
  }
}

TEST_CASE("a device that cannot be opened is passed over where there is another") {
  FakeVerbs fake;
  fake.devices = {{.name = "fake0"}, {.name = "fake1"}};
  fake.failing_call = "ibv_open_device";
  fake.failing_errno = EACCES;
  fake.works_before = 1;
  comm::LocalWorld(1)
      .run([&](comm::Communicator& comm) -> Status {
        Memory memory;
        REQUIRE(connect(comm, memory)->device().find("fake0") == 0);
        auto const none = connect(comm, memory);
        REQUIRE(none.message().find("ibv_open_device is \"Permission denied (fake1)\"") != std::string::npos);
        return {};
      })
      .or_throw();
  CHECK(nothing_left(fake));
}

TEST_CASE("a GPU's memory is registered by its dmabuf, or else by its address") {
  FakeVerbs fake;
  Memory memory;
  auto arena = memory.arena();
  arena.dmabuf_fd = 0;
  auto const connected = [&] {
    std::string message;
    comm::LocalWorld(1)
        .run([&](comm::Communicator& comm) -> Status {
          message = Verbs::connect(comm, arena, {}, FakeVerbs::api()).message();
          return {};
        })
        .or_throw();
    return message;
  };
  REQUIRE(connected() == "ok");
  REQUIRE((fake.access.size() == 2 &&
           fake.access[0] == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND)));
  fake.failing_call = "ibv_reg_dmabuf_mr";
  REQUIRE(connected() == "ok");
  REQUIRE(fake.access[2] == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  fake.failing_call = "ibv_reg_mr";
  REQUIRE(connected().find("ibv_reg_dmabuf_mr is \"Input/output error (fake0 port 1)\"") != std::string::npos);
  CHECK(nothing_left(fake));
}

TEST_CASE("a library that is not there, or is another, is named") {
  std::shared_ptr<const fabric::verbs::Api> api;
  auto const missing = fabric::verbs::Api::load(api, "libnot_there.so.1").error().message();
  REQUIRE(missing.find("libibverbs.so.1 is \"libnot_there.so.1") != std::string::npos);
  REQUIRE(missing.find("apt-get install libibverbs1") != std::string::npos);
  auto const other = fabric::verbs::Api::load(api, "libm.so.6").error().message();
  REQUIRE(other.find("function of libibverbs.so.1 is \"ibv_get_device_list\"") != std::string::npos);
  REQUIRE(api == nullptr);
}

TEST_CASE("the device of this machine, ranks as threads", "[device]") {
  MeshOptions const mesh{.rounds = 50, .quiet = true};
  Status const played = comm::LocalWorld(2).run([&](comm::Communicator& comm) { return MeshRank(comm, mesh).run({}); });
  std::string const field = played.error().field;
  if (env_number("MORI_EP_TEST_RDMA", 0) == 0 && (field == "libibverbs.so.1" || field == "RDMA devices")) {
    WARN("skipped: " << played.message());
    return;
  }
  REQUIRE(played.message() == "ok");
}

#else

TEST_CASE("without libibverbs' header nothing can be tried") { WARN("skipped: no <infiniband/verbs.h>"); }

#endif

}  // namespace mori_ep::test
