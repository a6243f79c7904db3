// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "mori_ep/env.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

Result<Environment> parse(const Variables& variables) {
  return Environment::parse([&](const char* name) -> const char* {
    auto const found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const EnvironmentVariable& row(const std::string& name) {
  for (auto const& variable : kEnvironmentTable)
    if (name == variable.name) return variable;
  FAIL("no row " << name);
  return kEnvironmentTable[0];
}

std::string shown(const std::string& name, const Environment& environment) {
  return row(name).show(row(name), environment);
}

//! What is in force when the variable has this text.
std::string taken(const std::string& name, const std::string& text) {
  INFO(name << "=" << text);
  auto const environment = parse({{name, text}});
  REQUIRE(environment.message() == "ok");
  return shown(name, *environment);
}

//! The error names variable, text, what is allowed, and the limit when there is one.
void require_refused(const std::string& name, const std::string& text, std::int64_t limit = Error::kNoLimit) {
  INFO(name << "=" << text);
  auto const environment = parse({{name, text}});
  REQUIRE(!environment.ok());
  Error const& error = environment.error();
  REQUIRE(error.code == Errc::invalid_environment);
  REQUIRE(error.field == name);
  REQUIRE(error.hint == std::string(row(name).allowed));
  REQUIRE(error.limit == limit);
  REQUIRE(std::string(error.text) == std::string(Error{}.with_text(text).text));
}

//! A text that the variable takes and that is not its default.
const Variables kOther = {
    {"MORI_SHMEM_HEAP_SIZE", "4G"},
    {"MORI_SOCKET_IFNAME", "^=docker0,lo"},
    {"MORI_BOOTSTRAP_TIMEOUT", "0.5"},
    {"MORI_NODE_ID", "rack 3, node 7"},
    {"MORI_RDMA_DEVICES", "mlx5_0,mlx5_1"},
    {"MORI_IB_GID_INDEX", "3"},
    {"MORI_RDMA_TC", "104"},
    {"MORI_RDMA_SL", "15"},
    {"MORI_NUM_QP_PER_PE", "2"},
    {"MORI_EP_LAUNCH_CONFIG_MODE", "AUTO"},
    {"MORI_EP_TUNING_CONFIG", "/tmp/a b.json"},
    {"MORI_TUNING_SCOPE", "full"},
    {"ENABLE_PROFILER", "ON"},
};

}  // namespace

TEST_CASE("every row has a name of its own and says what it is") {
  std::set<std::string> names;
  for (auto const& v : kEnvironmentTable) {
    INFO(v.name);
    REQUIRE(names.insert(v.name).second);
    REQUIRE((*v.effect != '\0' && *v.where != '\0'));
    REQUIRE((std::string(name(v.type)) != "unknown" && std::string(name(v.standing)) != "unknown"));
    bool const read = v.standing != EnvironmentStanding::not_read;
    REQUIRE((v.read != nullptr) == read);
    REQUIRE((v.show != nullptr) == read);
    REQUIRE((*v.allowed != '\0') == read);
    REQUIRE((*v.choices != '\0') == (v.type == EnvironmentType::choice));
    REQUIRE(v.low <= v.high);
  }
}

TEST_CASE("every row that is read changes one value, and that one is its own") {
  Environment const unset;
  for (auto const& v : kEnvironmentTable) {
    if (v.read == nullptr) continue;
    INFO(v.name << ": a new row needs a text in kOther");
    REQUIRE(kOther.count(v.name) == 1);
    REQUIRE(shown(v.name, unset) == v.default_text);
    auto const environment = parse({*kOther.find(v.name)});
    REQUIRE(environment.message() == "ok");
    for (auto const& other : kEnvironmentTable) {
      if (other.read == nullptr) continue;
      bool const itself = std::string(other.name) == v.name;
      REQUIRE(shown(other.name, *environment) == (itself ? kOther.at(v.name) : std::string(other.default_text)));
    }
  }
  REQUIRE(parse(kOther).ok());
}

TEST_CASE("unset and empty are the same, and what torch reads is left alone") {
  Variables empty, torch = {{"MASTER_PORT", "not a port"}, {"MASTER_ADDR", " "}, {"GLOO_SOCKET_IFNAME", ","}};
  for (auto const& [name, text] : kOther) empty[name] = "";
  for (auto const& variables : {Variables{}, empty, torch}) {
    auto const environment = parse(variables);
    REQUIRE(environment.message() == "ok");
    for (auto const& value : describe(*environment)) REQUIRE(value.value == value.variable->default_text);
    REQUIRE((!environment->heap_bytes && !environment->socket_interfaces.is_set() && environment->node_id.empty()));
    REQUIRE((!environment->gid_index && !environment->rdma_traffic_class && !environment->rdma_service_level));
    REQUIRE((environment->bootstrap_timeout == 300s && environment->queue_pairs_per_peer == 4));
    REQUIRE((environment->launch_config_mode == LaunchConfigMode::manual && !environment->profiler));
    REQUIRE((environment->tuning_config.empty() && environment->tuning_scope == TuningScope::quick));
  }
  static_assert(std::is_trivially_copyable_v<Environment>);
}

TEST_CASE("values arrive in their types") {
  auto const e = parse(kOther);
  REQUIRE(e.ok());
  REQUIRE((e->heap_bytes == std::int64_t{4} << 30 && e->bootstrap_timeout == 500ms &&
           e->node_id.view() == "rack 3, node 7"));
  REQUIRE((e->gid_index == 3 && e->rdma_traffic_class == 104 && e->rdma_service_level == 15));
  REQUIRE((e->queue_pairs_per_peer == 2 && e->launch_config_mode == LaunchConfigMode::automatic));
  REQUIRE(e->tuning_config.c_str() == std::string("/tmp/a b.json"));
  REQUIRE((e->tuning_scope == TuningScope::full && e->profiler));
}

TEST_CASE("bytes: suffixes in either case, fractions of a unit, limits") {
  auto const bytes = [](const std::string& text) {
    INFO(text);
    auto const environment = parse({{"MORI_SHMEM_HEAP_SIZE", text}});
    REQUIRE(environment.message() == "ok");
    return *environment->heap_bytes;
  };
  REQUIRE(bytes("1") == 1);
  REQUIRE(bytes("0004096") == 4096);
  std::int64_t unit = 1;
  for (std::string const letter : {"K", "M", "G", "T"}) {
    unit *= 1024;
    auto small = letter;
    small[0] = static_cast<char>(small[0] - 'A' + 'a');
    for (std::string const& one : {letter, small})
      for (std::string const rest : {"", "B", "b", "iB", "IB", "ib"}) {
        REQUIRE(bytes("6" + one + rest) == 6 * unit);
        REQUIRE(bytes("1.5" + one + rest) == 3 * unit / 2);
      }
  }
  REQUIRE(bytes("0.25k") == 256);
  REQUIRE(bytes("1.1G") == 1181116006);  // 1181116006.4
  REQUIRE(bytes("0.99999999999999999999999999999999T") == (std::int64_t{1} << 40) - 1);
  REQUIRE(bytes("0.001K") == 1);
  REQUIRE(bytes("1048576T") == std::int64_t{1} << 60);
  REQUIRE(bytes("1152921504606846976") == std::int64_t{1} << 60);
  REQUIRE(taken("MORI_SHMEM_HEAP_SIZE", "1536M") == "1536M");
  REQUIRE(taken("MORI_SHMEM_HEAP_SIZE", "1.5G") == "1536M");
  REQUIRE(taken("MORI_SHMEM_HEAP_SIZE", "1025") == "1025");
  REQUIRE(taken("MORI_SHMEM_HEAP_SIZE", "2048T") == "2048T");

  for (const char* text : {"0", "0G", "0.0000000001K", "0.0K"}) require_refused("MORI_SHMEM_HEAP_SIZE", text, 1);
  for (const char* text : {"1152921504606846977", "1048576.5T", "8388608T", "9223372036854775807",
                           "9223372036854775808", "18446744073709551617", "99999999999999999999999999G"})
    require_refused("MORI_SHMEM_HEAP_SIZE", text, std::int64_t{1} << 60);
  for (const char* text : {"-1",   "-4G",  "+4G",  "4 G", "4G ",  " 4G",  "4 G ", "G",   "B",     "iB",     "4B", "4iB",
                           "4Gi",  "4GBB", "4GG",  "4P",  "1.5",  "1.5B", ".5G",  "5.G", "1..5G", "1.5.5G", ".",  ".G",
                           "1,5G", "1e9",  "0x10", "4_G", "4G\n", "vier", "inf",  "nan", "4GiBs", "4-"})
    require_refused("MORI_SHMEM_HEAP_SIZE", text);
  REQUIRE(
      parse({{"MORI_SHMEM_HEAP_SIZE", "4 G"}}).message() ==
      "mori_ep: invalid environment: MORI_SHMEM_HEAP_SIZE is \"4 G\". Give a whole number of bytes, or a number and "
      "K, M, G or T (powers of 1024) without a blank: 4G, 1.5G, 512MiB.");
  REQUIRE(parse({{"MORI_SHMEM_HEAP_SIZE", "0"}}).message().find("is \"0\", limit 1. Give") != std::string::npos);
}

TEST_CASE("seconds: decimals, and limits at both ends") {
  auto const timeout = [](const std::string& text) {
    INFO(text);
    auto const environment = parse({{"MORI_BOOTSTRAP_TIMEOUT", text}});
    REQUIRE(environment.message() == "ok");
    return environment->bootstrap_timeout;
  };
  REQUIRE(timeout("0.001") == 1ms);
  REQUIRE(timeout("1") == 1s);
  REQUIRE(timeout("2.25") == 2250ms);
  REQUIRE(timeout("86400") == 86400s);
  REQUIRE(timeout("86400.0") == 86400s);
  REQUIRE(timeout("1.00000000099") == 1s);
  for (const char* text : {"300", "0.5", "0.001", "1000.125", "60", "10.000000001"})
    REQUIRE(taken("MORI_BOOTSTRAP_TIMEOUT", text) == text);
  for (const char* text : {"0", "0.0", "0.000999999999"}) require_refused("MORI_BOOTSTRAP_TIMEOUT", text);
  for (const char* text : {"86400.000000001", "86401", "9223372036", "9223372037", "99999999999999999999"})
    require_refused("MORI_BOOTSTRAP_TIMEOUT", text, 86400);
  for (const char* text : {"-1", "5s", "5 ", " 5", "5 s", ".5", "5.", "1:30", "1e2", "inf", "1,5", "five"})
    require_refused("MORI_BOOTSTRAP_TIMEOUT", text);
}

TEST_CASE("integers: every limit, and nothing but digits") {
  struct Limits {
    const char* name;
    std::int64_t low, high;
  };
  for (auto const& [name, low, high] : {Limits{"MORI_IB_GID_INDEX", 0, 255}, Limits{"MORI_RDMA_TC", 0, 255},
                                        Limits{"MORI_RDMA_SL", 0, 15}, Limits{"MORI_NUM_QP_PER_PE", 1, 64}}) {
    REQUIRE(taken(name, std::to_string(low)) == std::to_string(low));
    REQUIRE(taken(name, std::to_string(high)) == std::to_string(high));
    REQUIRE(taken(name, "007") == "7");
    if (low > 0) require_refused(name, std::to_string(low - 1), low);
    for (std::string const& text :
         {std::to_string(high + 1), std::string("4294967297"), std::string("18446744073709551617")})
      require_refused(name, text, high);
    for (const char* text : {"-1", "+1", "1.0", "1 ", " 1", "0x1", "1k", "one", "1,2", "-"})
      require_refused(name, text);
  }
}

TEST_CASE("choices and flags: the words, in either case, and no others") {
  REQUIRE(taken("MORI_EP_LAUNCH_CONFIG_MODE", "auto") == "AUTO");
  REQUIRE(taken("MORI_EP_LAUNCH_CONFIG_MODE", "Manual") == "MANUAL");
  REQUIRE(taken("MORI_TUNING_SCOPE", "QUICK") == "quick");
  REQUIRE(taken("MORI_TUNING_SCOPE", "full") == "full");
  for (const char* text : {"AUTOMATIC", "AUT", "MANUAL|AUTO", "|", "1", "AUTO ", "quick"})
    require_refused("MORI_EP_LAUNCH_CONFIG_MODE", text);
  for (const char* text : {"fuller", "MANUAL", "quick,full"}) require_refused("MORI_TUNING_SCOPE", text);
  for (const char* text : {"ON", "on", "1", "true", "TRUE", "yes", "Yes"})
    REQUIRE(taken("ENABLE_PROFILER", text) == "ON");
  for (const char* text : {"OFF", "off", "0", "false", "False", "no", "NO"})
    REQUIRE(taken("ENABLE_PROFILER", text) == "OFF");
  for (const char* text : {"2", "y", "n", "enabled", "ON ", "01", "onn"}) require_refused("ENABLE_PROFILER", text);
}

TEST_CASE("interface lists: prefixes, whole names after =, exclusion after ^") {
  auto const admits = [](const std::string& text, const std::string& name) {
    INFO(text);
    auto const environment = parse({{"MORI_SOCKET_IFNAME", text}});
    REQUIRE(environment.message() == "ok");
    return environment->socket_interfaces.admits(name);
  };
  REQUIRE((admits("", "eth0") && admits("", "anything")));
  REQUIRE((admits("eth", "eth0") && admits("eth", "eth") && !admits("eth", "et") && !admits("eth", "ib0")));
  REQUIRE((admits("eth0", "eth0") && admits("eth0", "eth01") && admits("eth,ib", "ib1") && !admits("eth,ib", "lo")));
  REQUIRE((admits("=eth0", "eth0") && !admits("=eth0", "eth01") && !admits("=eth", "eth0")));
  REQUIRE((admits("=eth0,ib0", "ib0") && !admits("=eth0,ib0", "ib01")));
  REQUIRE((!admits("^docker", "docker0") && admits("^docker", "eth0") && !admits("^docker,lo", "lo")));
  REQUIRE((!admits("^=docker0", "docker0") && admits("^=docker0", "docker01") && !admits("^=docker0,lo", "lo")));
  REQUIRE(admits("br-1a2b3c,eth0:1,wlp2s0.100", "eth0:1"));
  REQUIRE(taken("MORI_SOCKET_IFNAME", std::string(15, 'e')) == std::string(15, 'e'));
  require_refused("MORI_SOCKET_IFNAME", std::string(16, 'e'), 15);
  require_refused("MORI_SOCKET_IFNAME", "eth0," + std::string(16, 'e'), 15);
  for (const char* text : {"^", "=", "^=", ",", "eth0,", ",eth0", "eth0,,ib0", "eth0, ib0", " eth0", "eth0 ", "=^eth0",
                           "^^eth0", "==eth0", "eth0,=ib0", "eth0,^ib0", "et/h", "eth\t", "eth\xc3\xa4"})
    require_refused("MORI_SOCKET_IFNAME", text);
  std::string longest = "e";
  while (longest.size() + 2 <= 1023) longest += ",e";
  REQUIRE(taken("MORI_SOCKET_IFNAME", longest) == longest);
  require_refused("MORI_SOCKET_IFNAME", longest + ",e", 1023);
}

TEST_CASE("device lists: whole names, exclusion after ^") {
  auto const admits = [](const std::string& text, const std::string& name) {
    return parse({{"MORI_RDMA_DEVICES", text}})->rdma_devices.admits(name);
  };
  REQUIRE((admits("mlx5_1", "mlx5_1") && !admits("mlx5_1", "mlx5_10") && !admits("mlx5", "mlx5_0")));
  REQUIRE((admits("mlx5_0,mlx5_1", "mlx5_1") && !admits("mlx5_0,mlx5_1", "mlx5_2")));
  REQUIRE((!admits("^mlx5_2,mlx5_3", "mlx5_3") && admits("^mlx5_2,mlx5_3", "mlx5_30")));
  for (const char* text : {"^", "=mlx5_0", "^=mlx5_0", "mlx5_0,", "mlx5_0, mlx5_1", "mlx5_0,^mlx5_1"})
    require_refused("MORI_RDMA_DEVICES", text);
  require_refused("MORI_RDMA_DEVICES", std::string(64, 'm'), 63);
}

TEST_CASE("texts and paths: length, and what cannot be seen") {
  REQUIRE(taken("MORI_NODE_ID", std::string(63, 'n')) == std::string(63, 'n'));
  require_refused("MORI_NODE_ID", std::string(64, 'n'), 63);
  for (const char* text : {" ", " a", "a ", "a\tb", "a\n", "\x7f"}) require_refused("MORI_NODE_ID", text);
  REQUIRE(taken("MORI_NODE_ID", "n\xc3\xb8") == "n\xc3\xb8");
  REQUIRE(taken("MORI_EP_TUNING_CONFIG", std::string(4095, 'p')).size() == 4095);
  require_refused("MORI_EP_TUNING_CONFIG", std::string(4096, 'p'), 4095);
}

TEST_CASE("a process's own variables are read") {
  ::setenv("MORI_NUM_QP_PER_PE", "9", 1);
  auto const set = Environment::from_process();
  ::setenv("MORI_NUM_QP_PER_PE", "nine", 1);
  auto const wrong = Environment::from_process();
  ::unsetenv("MORI_NUM_QP_PER_PE");
  REQUIRE(set.message() == "ok");
  REQUIRE(set->queue_pairs_per_peer == 9);
  REQUIRE(wrong.message() ==
          "mori_ep: invalid environment: MORI_NUM_QP_PER_PE is \"nine\". Give a whole number, 1 to 64: 4.");
  static_assert(noexcept(Environment::from_process()));
}

TEST_CASE("unknown variables are found, with the name that they may be meant for") {
  const char* const entries[] = {"PATH=/bin",
                                 "MORI_SHMEM_HEAP_SIZE=4G",
                                 "MORI_SHMEM_HEAPSIZE=4G",
                                 "MORI_SOCKET_IFNAMES=eth0",
                                 "MORI_COMPLETELY_DIFFERENT_THING=1",
                                 "MORI_EP_TEST_CASES=5",
                                 "MORI_rdma_tc",
                                 "NOT_MORI_RDMA_TC=1",
                                 nullptr};
  auto const unknown = unknown_variables(entries);
  REQUIRE(unknown.size() == 4);
  REQUIRE((unknown[0].name == "MORI_SHMEM_HEAPSIZE" && unknown[0].nearest == std::string("MORI_SHMEM_HEAP_SIZE")));
  REQUIRE((unknown[1].name == "MORI_SOCKET_IFNAMES" && unknown[1].nearest == std::string("MORI_SOCKET_IFNAME")));
  REQUIRE((unknown[2].name == "MORI_COMPLETELY_DIFFERENT_THING" && unknown[2].nearest == nullptr));
  REQUIRE((unknown[3].name == "MORI_rdma_tc" && unknown[3].nearest == std::string("MORI_RDMA_TC")));
  REQUIRE(unknown_variables(nullptr).empty());
  REQUIRE(detail::edits_between("", "abc") == 3);
  REQUIRE(detail::edits_between("kitten", "sitting") == 3);
}

}  // namespace mori_ep::test
