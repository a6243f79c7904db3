// SPDX-License-Identifier: MIT
// One rank's configuration: each limit with its field, value and limit; the same function in constant evaluation.
#include <string>

#include "mori_ep/schedule/config.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {
namespace {

constexpr EpDispatchCombineConfig kGood{
    .hidden_dim = 64, .max_num_inp_token_per_rank = 16, .num_experts_per_rank = 4, .num_experts_per_token = 2};
static_assert(validate(kGood, 8, 8).ok());
static_assert(!validate(kGood, 0, 8).ok());

struct Case {
  const char* field;
  void (*change)(EpDispatchCombineConfig&);
  std::int64_t value, limit;
};

constexpr Case kBad[] = {
    {"hidden_dim", [](EpDispatchCombineConfig& c) { c.hidden_dim = 0; }, 0, 1},
    {"hidden_dim", [](EpDispatchCombineConfig& c) { c.hidden_dim = -16; }, -16, 1},
    {"hidden_dim", [](EpDispatchCombineConfig& c) { c.hidden_dim = 68; }, 68, 8},
    {"max_num_inp_token_per_rank", [](EpDispatchCombineConfig& c) { c.max_num_inp_token_per_rank = 0; }, 0, 1},
    {"max_num_inp_token_per_rank", [](EpDispatchCombineConfig& c) { c.max_num_inp_token_per_rank = 1 << 28; }, 1 << 28,
     INT32_MAX / 8},
    {"num_experts_per_rank", [](EpDispatchCombineConfig& c) { c.num_experts_per_rank = 0; }, 0, 1},
    {"num_experts_per_rank", [](EpDispatchCombineConfig& c) { c.num_experts_per_rank = 1025; }, 1025, 1024},
    {"num_experts", [](EpDispatchCombineConfig& c) { c.num_experts = 31; }, 31, 32},
    {"num_experts", [](EpDispatchCombineConfig& c) { c.num_experts = 64; }, 64, 32},
    {"num_experts_per_token", [](EpDispatchCombineConfig& c) { c.num_experts_per_token = 0; }, 0, 32},
    {"num_experts_per_token", [](EpDispatchCombineConfig& c) { c.num_experts_per_token = 33; }, 33, 32},
    {"scale_dim", [](EpDispatchCombineConfig& c) { c.scale_dim = -1; }, -1, 0},
    {"scale_type_size", [](EpDispatchCombineConfig& c) { c.scale_dim = 4; }, 0, 1},
    {"scale_type_size", [](EpDispatchCombineConfig& c) { c.scale_type_size = -4; }, -4, 16},
    {"max_total_recv_tokens", [](EpDispatchCombineConfig& c) { c.max_total_recv_tokens = -1; }, -1, 0},
    {"num_buffer_sets", [](EpDispatchCombineConfig& c) { c.num_buffer_sets = 0; }, 0, 2},
    {"num_buffer_sets", [](EpDispatchCombineConfig& c) { c.num_buffer_sets = 3; }, 3, 2},
    {"reduce_gpu_per_node", [](EpDispatchCombineConfig& c) { c.reduce_gpu_per_node = -1; }, -1, 0},
    {"timeout_ms", [](EpDispatchCombineConfig& c) { c.timeout_ms = 0; }, 0, 1},
    {"timeout_ms", [](EpDispatchCombineConfig& c) { c.timeout_ms = INT64_MAX; }, INT64_MAX, 1'000'000'000},
};

}  // namespace

TEST_CASE("a configuration out of its limits is refused with field, value and limit") {
  for (const Case& bad : kBad) {
    EpDispatchCombineConfig config = kGood;
    bad.change(config);
    Status const s = validate(config, 8, 8);
    INFO(bad.field << " = " << bad.value << ": " << s.message());
    REQUIRE(s.code() == Errc::invalid_config);
    REQUIRE(s.error().phase == Phase::create);
    REQUIRE(std::string(s.error().field) == bad.field);
    REQUIRE(s.error().value == bad.value);
    REQUIRE(s.error().limit == bad.limit);
    REQUIRE(s.message().find(bad.field) != std::string::npos);
    REQUIRE(s.message().find(std::to_string(bad.value)) != std::string::npos);
    REQUIRE(s.message().find("limit " + std::to_string(bad.limit)) != std::string::npos);
    REQUIRE(std::string(s.error().hint) != "");
  }
}

TEST_CASE("hidden sizes need no more than 16-byte rows") {
  for (int elements : {8, 16, 24, 40, 96, 1000, 2880, 3584, 7168, 16384}) {
    EpDispatchCombineConfig config = kGood;
    config.hidden_dim = elements;
    REQUIRE(validate(config, 8, 8).ok());
    REQUIRE(validate(config, 8, 4).ok());
    config.hidden_dim = elements + 4;
    REQUIRE_FALSE(validate(config, 8, 8).ok());
    REQUIRE(validate(config, 8, 4).ok());
  }
}

TEST_CASE("the receive capacity is W * M unless fewer are asked for") {
  EpDispatchCombineConfig config = kGood;
  REQUIRE(config.recv_capacity(8) == 128);
  config.max_total_recv_tokens = 100;
  REQUIRE(config.recv_capacity(8) == 100);
  config.max_total_recv_tokens = 1000;
  REQUIRE(config.recv_capacity(8) == 128);
  REQUIRE(config.scale_bytes() == 0);
  config.scale_dim = 56, config.scale_type_size = 4;
  REQUIRE(config.scale_bytes() == 224);
}

}  // namespace mori_ep::test
