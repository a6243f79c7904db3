// SPDX-License-Identifier: MIT
// The verdict over all ranks' records: one function of the records, so every rank comes to the same.
#include "mori_ep/schedule/join.hpp"

#include <string>
#include <vector>

#include "mori_ep/schedule/intra_node/layout.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using schedule::JoinRecord;
using schedule::judge;
using schedule::ProtocolHash;

namespace {
std::vector<JoinRecord> good_records() {
  JoinRecord r{.protocol = 7,
               .config = {.hidden_dim = 64,
                          .max_num_inp_token_per_rank = 16,
                          .num_experts_per_rank = 4,
                          .num_experts_per_token = 2},
               .hidden_unit = 8,
               .needed_bytes = 1000,
               .memory_bytes = 1000,
               .max_blocks = 16,
               .max_warps = 8};
  return std::vector<JoinRecord>(4, r);
}
}  // namespace

TEST_CASE("equal records pass") { REQUIRE(judge(good_records()).ok()); }

TEST_CASE("the first rank that stands out is named with its field") {
  struct Case {
    void (*change)(JoinRecord&);
    Errc code;
    const char* field;
    std::int64_t value, limit;
  };
  for (const Case& c : {
           Case{[](JoinRecord& r) { r.protocol = 8; }, Errc::protocol_mismatch, "protocol hash", 8, 7},
           Case{[](JoinRecord& r) { r.config.hidden_dim = 72; }, Errc::config_mismatch, "hidden_dim", 72, 64},
           Case{[](JoinRecord& r) { r.config.hidden_dim = 7; }, Errc::invalid_config, "hidden_dim", 7, 8},
           Case{[](JoinRecord& r) { r.config.warp_num_per_block = 9; }, Errc::invalid_config, "warp_num_per_block", 9,
                8},
           Case{[](JoinRecord& r) { r.config.block_num = 17; }, Errc::invalid_config, "block_num", 17, 16},
           Case{[](JoinRecord& r) { r.config.block_num = -1; }, Errc::invalid_config, "block_num", -1, 16},
           Case{[](JoinRecord& r) { r.devices = 0; }, Errc::device_error, "visible GPUs", 0, 1},
           Case{[](JoinRecord& r) { r.capturing = 1, r.memory_bytes = 0; }, Errc::device_error, "stream capture", 1, 0},
           Case{[](JoinRecord& r) { r.memory_bytes = 999, r.memory_given = 1; }, Errc::out_of_memory, "arena bytes",
                999, 1000},
           Case{[](JoinRecord& r) { r.memory_bytes = 0; }, Errc::out_of_memory, "arena bytes allocated", 0, 1000},
           Case{[](JoinRecord& r) { r.memory_shared = 0; }, Errc::invalid_argument, "peer access", 0, 1},
           Case{[](JoinRecord& r) { r.memory_aligned = 0; }, Errc::invalid_argument, "arena alignment", 0, 256},
           Case{[](JoinRecord& r) { r.needed_bytes = -1; }, Errc::out_of_memory, "footprint bytes", -1,
                Error::kNoLimit},
       }) {
    auto records = good_records();
    c.change(records[2]);
    Status const s = judge(records);
    INFO(s.message());
    REQUIRE(s.code() == c.code);
    REQUIRE(s.error().rank == 2);
    REQUIRE(s.error().phase == Phase::create);
    REQUIRE(std::string(s.error().field) == c.field);
    REQUIRE(s.error().value == c.value);
    REQUIRE(s.error().limit == c.limit);
  }
}

TEST_CASE("devices that cannot reach each other are named") {
  auto records = good_records();
  for (int r = 0; r < 4; ++r) {
    records[static_cast<std::size_t>(r)].ordinal = r;
    records[static_cast<std::size_t>(r)].reachable = 0b1111;
  }
  REQUIRE(judge(records).ok());
  records[1].reachable = 0b0111;
  Status const s = judge(records);
  INFO(s.message());
  REQUIRE(std::string(s.error().field) == "peer access");
  REQUIRE(s.error().rank == 1);
  REQUIRE(s.error().peer == 3);
}

TEST_CASE("every shared field is compared") {
  for (std::size_t i = 0; i < std::size(kSharedConfigFields); ++i) {
    auto records = good_records();
    EpDispatchCombineConfig& c = records[3].config;
    switch (i) {
      case 0:
        c.hidden_dim = 128;
        break;
      case 1:
        c.max_num_inp_token_per_rank = 15;
        break;
      case 2:
        c.num_experts_per_rank = 5;
        break;
      case 3:
        c.num_experts_per_token = 3;
        break;
      case 4:
        c.num_experts = 16;
        break;
      case 5:
        c.scale_dim = 1, c.scale_type_size = 1;
        break;
      case 6:
        c.scale_type_size = 1;
        break;
      case 7:
        c.max_total_recv_tokens = 5;
        break;
      case 8:
        c.num_buffer_sets = 2;
        break;
      case 9:
        c.rows_per_put = 2;
        break;
      case 10:
        c.reduce_gpu_per_node = 2;
        break;
      case 11:
        c.first_epoch = 1;
        break;
      default:
        FAIL("a shared field without a test: " << kSharedConfigFields[i].name);
    }
    Status const s = judge(records);
    REQUIRE(s.code() == Errc::config_mismatch);
    REQUIRE(std::string(s.error().field) == kSharedConfigFields[i].name);
    REQUIRE(s.error().rank == 3);
    REQUIRE(s.error().peer == 0);
  }
}

TEST_CASE("what no command between nodes holds is refused before anything is laid out") {
  struct Case {
    const char* field;
    std::uint64_t schedule::Carried::*member;
    std::uint64_t limit;
  };
  for (const Case& c :
       {Case{"bytes of one put between nodes", &schedule::Carried::put, fabric::Command::kMostBytes},
        Case{"arena bytes between nodes", &schedule::Carried::arena, fabric::Command::kReach},
        Case{"signal bytes between nodes", &schedule::Carried::signals, fabric::Command::kSignalReach}}) {
    auto records = good_records();
    for (JoinRecord& r : records) r.carried.*c.member = c.limit;
    REQUIRE(judge(records).ok());
    records[2].carried.*c.member = c.limit + 1;
    Status const s = judge(records);
    REQUIRE((s.code() == Errc::invalid_config && s.error().field == std::string(c.field) && s.error().rank == 2));
    REQUIRE(s.error().limit == static_cast<std::int64_t>(c.limit));
  }
  // Signals lie before rows, however large those are.
  EpDispatchCombineConfig const large{.hidden_dim = 7168,
                                      .max_num_inp_token_per_rank = 8192,
                                      .num_experts_per_rank = 4,
                                      .num_experts_per_token = 8,
                                      .num_buffer_sets = 2};
  for (bool relays : {false, true}) {
    auto const layout = schedule::intra_node::Layout::make(
        large, 64, {2 * 7168, 2 * 7168, 2 * 7168}, 4,
        {.far = true, .nodes = {.per = 8, .world = 64}, .relays = relays, .sums = schedule::intra_node::SumForm::fp32});
    REQUIRE(layout.bytes > fabric::Command::kSignalReach);
    REQUIRE(layout.bytes < fabric::Command::kReach);
    REQUIRE(layout.signal_bytes < (1 << 24));
    REQUIRE(layout.largest_put < fabric::Command::kMostBytes);
    for (const auto& set : layout.sets) REQUIRE(set.rows_arrived.offset < layout.signal_bytes);
    REQUIRE(layout.relay[1].ready.offset + layout.far[1].ready.offset < layout.signal_bytes);
  }
}

TEST_CASE("ranks on one device, and buffer sets, share what it keeps resident") {
  auto records = good_records();
  for (int sets : {1, 2}) {
    for (std::size_t r = 0; r < 4; ++r) {
      records[r].device = r < 3 ? 7 : 8;
      records[r].max_blocks = 64;
      records[r].config.num_buffer_sets = sets;
    }
    REQUIRE(sharers_of(records, 0) == 3);
    REQUIRE(launches_beside(records, 0) == 3 * sets);
    REQUIRE(launches_beside(records, 3) == sets);
    records[1].config.block_num = 64 / (3 * sets);
    REQUIRE(judge(records).ok());
    ++records[1].config.block_num;
    REQUIRE(std::string(judge(records).error().field) == "block_num");
    REQUIRE(judge(records).error().limit == 64 / (3 * sets));
    records[1].config.block_num = 0;
  }
  records[2].device = 0;
  REQUIRE(launches_beside(records, 2) == 1);
}

TEST_CASE("what may differ between ranks passes") {
  auto records = good_records();
  records[1].config.block_num = 3;
  records[2].config.warp_num_per_block = 2;
  records[3].config.timeout_ms = 5;
  records[3].memory_bytes = 4096;
  REQUIRE(judge(records).ok());
}

TEST_CASE("the protocol hash tells names, numbers and their order apart") {
  auto const hash = [](auto... parts) {
    ProtocolHash h;
    (h.add(parts), ...);
    return h.value();
  };
  REQUIRE(hash("ab", "c") != hash("a", "bc"));
  REQUIRE(hash("a", "b") != hash("b", "a"));
  REQUIRE(hash(std::uint64_t{4}) != hash(std::uint64_t{8}));
  REQUIRE(hash("bf16") == hash("bf16"));
}

}  // namespace mori_ep::test
