// SPDX-License-Identifier: MIT
//! @file Every environment variable in one table, and the values that a process's variables give.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mori_ep/env/text.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep {

//! @brief How a variable's text is read. None may hold blanks but paths and texts; letters count in either case where
//!        the allowed words are known.
enum class EnvironmentType : std::uint8_t {
  bytes,           //!< a whole number, or a number and K, M, G or T, each with iB, B or neither: powers of 1024
  seconds,         //!< a decimal number, kept in nanoseconds
  integer,         //!< a decimal number without sign or fraction
  choice,          //!< one of a few words
  interface_list,  //!< names divided by commas; ^ at the start excludes them, = then takes them as whole names
  device_list,     //!< whole names divided by commas; ^ at the start excludes them
  path,            //!< a file
  flag,            //!< ON, 1, true, yes or OFF, 0, false, no
  text             //!< printable characters, no blank at either end
};

//! @brief Whether a variable does anything in this version.
enum class EnvironmentStanding : std::uint8_t {
  acts,     //!< what it says is in force
  planned,  //!< checked and kept, but nothing asks for it yet
  not_read  //!< another library's, listed because users meet both: mori_ep never looks at it
};

constexpr const char* name(EnvironmentType type) noexcept {
  switch (type) {
    case EnvironmentType::bytes:
      return "bytes";
    case EnvironmentType::seconds:
      return "seconds";
    case EnvironmentType::integer:
      return "integer";
    case EnvironmentType::choice:
      return "choice";
    case EnvironmentType::interface_list:
      return "interface list";
    case EnvironmentType::device_list:
      return "device list";
    case EnvironmentType::path:
      return "path";
    case EnvironmentType::flag:
      return "flag";
    case EnvironmentType::text:
      return "text";
  }
  return "unknown";
}

constexpr const char* name(EnvironmentStanding standing) noexcept {
  switch (standing) {
    case EnvironmentStanding::acts:
      return "acts";
    case EnvironmentStanding::planned:
      return "planned";
    case EnvironmentStanding::not_read:
      return "not read";
  }
  return "unknown";
}

//! @brief MORI_EP_LAUNCH_CONFIG_MODE, in the order of the table's choices.
enum class LaunchConfigMode : std::uint8_t { manual, automatic };
//! @brief MORI_TUNING_SCOPE, in the order of the table's choices.
enum class TuningScope : std::uint8_t { quick, full };

struct EnvironmentVariable;

//! @brief What the environment says, parsed once: a plain value that never looks at the process again.
struct Environment {
  std::optional<std::int64_t> heap_bytes;  //!< MORI_SHMEM_HEAP_SIZE; none: no limit
  NameFilter socket_interfaces{.list = {}, .prefixes = true};
  std::chrono::nanoseconds bootstrap_timeout = std::chrono::seconds(300);
  FixedText<63> node_id;  //!< empty: the host's own identity
  NameFilter rdma_devices;
  std::optional<int> gid_index, rdma_traffic_class, rdma_service_level;
  int queue_pairs_per_peer = 4;
  LaunchConfigMode launch_config_mode = LaunchConfigMode::manual;
  FixedText<4095> tuning_config;  //!< a path; empty: none
  TuningScope tuning_scope = TuningScope::quick;
  bool profiler = false;

  //! @brief This process's variables. Like getenv, it must not run while another thread sets one.
  static Result<Environment> from_process() noexcept;
  //! @brief The variables that `lookup` knows: called with a name, it returns a text, or nullptr when there is none.
  //! @return the first variable that is not what it may be, as Errc::invalid_environment
  template <class Lookup>
  static Result<Environment> parse(Lookup&& lookup) noexcept(noexcept(lookup("")));
  //! @brief Takes one variable's text; nullptr and "" leave the value as it is.
  [[nodiscard]] Status take(const EnvironmentVariable& variable, const char* text) noexcept;
};

//! @brief A row of the table.
struct EnvironmentVariable {
  const char* name;
  EnvironmentType type;
  std::int64_t low = 0, high = 0;  //!< limits of numbers: bytes, nanoseconds, integers
  const char* choices = "";        //!< of a choice, divided by |, in the order of its enumerators
  const char* default_text;        //!< the value in force when it is not set
  const char* allowed;             //!< what it may be, with an example: the hint of its errors
  const char* effect;
  const char* where;  //!< which part of the library it steers
  EnvironmentStanding standing;
  Status (*read)(const EnvironmentVariable&, std::string_view text, Environment&) noexcept = nullptr;
  std::string (*show)(const EnvironmentVariable&, const Environment&) = nullptr;
};

namespace detail {

inline Error refused(const EnvironmentVariable& v, std::string_view text,
                     std::int64_t limit = Error::kNoLimit) noexcept {
  return Error{.code = Errc::invalid_environment, .field = v.name, .limit = limit, .hint = v.allowed}.with_text(text);
}

//! @param unit what one of the number that errors speak of is in `number`
inline Status within(const EnvironmentVariable& v, std::string_view text, std::optional<std::int64_t> number,
                     std::int64_t unit) noexcept {
  if (!number) return refused(v, text);
  if (*number < v.low) return refused(v, text, v.low % unit == 0 ? v.low / unit : Error::kNoLimit);
  if (*number > v.high) return refused(v, text, v.high / unit);
  return {};
}

// One read and one show for each type of value.

inline Status read_value(const EnvironmentVariable& v, std::string_view text, std::optional<std::int64_t>& value) {
  auto const bytes = bytes_of(text);
  if (Status status = within(v, text, bytes, 1); !status.ok()) return status;
  value = bytes;
  return {};
}
inline Status read_value(const EnvironmentVariable& v, std::string_view text, std::chrono::nanoseconds& value) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  auto const count = scaled_decimal(text, kSecond, true);
  if (Status status = within(v, text, count, kSecond); !status.ok()) return status;
  value = std::chrono::nanoseconds(*count);
  return {};
}
inline Status read_value(const EnvironmentVariable& v, std::string_view text, int& value) {
  auto const number = scaled_decimal(text, 1, false);
  if (Status status = within(v, text, number, 1); !status.ok()) return status;
  value = static_cast<int>(*number);
  return {};
}
inline Status read_value(const EnvironmentVariable& v, std::string_view text, std::optional<int>& value) {
  int number = 0;
  if (Status status = read_value(v, text, number); !status.ok()) return status;
  value = number;
  return {};
}
inline Status read_value(const EnvironmentVariable& v, std::string_view text, bool& value) {
  for (auto const& [on, off] : {std::pair{"on", "off"}, {"1", "0"}, {"true", "false"}, {"yes", "no"}})
    if (bool const yes = same_word(text, on); yes || same_word(text, off)) {
      value = yes;
      return {};
    }
  return refused(v, text);
}
template <class Enum>
requires std::is_enum_v<Enum> Status read_value(const EnvironmentVariable& v, std::string_view text, Enum& value) {
  std::string_view rest = v.choices;
  for (int i = 0;; ++i) {
    std::size_t const bar = rest.find('|');
    if (same_word(text, rest.substr(0, bar))) {
      value = static_cast<Enum>(i);
      return {};
    }
    if (bar == std::string_view::npos) return refused(v, text);
    rest.remove_prefix(bar + 1);
  }
}
template <std::size_t kRoom>
Status read_value(const EnvironmentVariable& v, std::string_view text, FixedText<kRoom>& value) {
  if (v.type == EnvironmentType::text) {
    if (text.front() == ' ' || text.back() == ' ') return refused(v, text);
    for (char const c : text)
      if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') return refused(v, text);
  }
  if (!value.assign(text)) return refused(v, text, kRoom);
  return {};
}
inline Status read_value(const EnvironmentVariable& v, std::string_view text, NameFilter& value) {
  NameFilter filter{.list = {}, .prefixes = v.type == EnvironmentType::interface_list};
  if (!filter.list.assign(text)) return refused(v, text, static_cast<std::int64_t>(filter.list.kMaxLength));
  std::size_t length = 0;
  for (char const c : filter.names()) {
    // A comma must end a name; marks belong to the start of the list alone, where names() has left them out.
    bool const allowed = c == ',' ? length > 0 : c > ' ' && c < '\x7f' && c != '^' && c != '=' && c != '/';
    length = c == ',' ? 0 : length + 1;
    if (!allowed) return refused(v, text);
    if (static_cast<std::int64_t>(length) > v.high) return refused(v, text, v.high);
  }
  if (length == 0) return refused(v, text);
  value = filter;
  return {};
}

inline std::string show_value(const EnvironmentVariable& v, const std::optional<std::int64_t>& value) {
  if (!value) return v.default_text;
  std::int64_t number = *value;
  std::size_t unit = 0;
  for (; unit < 4 && number % 1024 == 0; ++unit) number /= 1024;
  return std::to_string(number) + (unit == 0 ? "" : std::string(1, "KMGT"[unit - 1]));
}
inline std::string show_value(const EnvironmentVariable&, std::chrono::nanoseconds value) {
  std::string text = std::to_string(value.count() / 1'000'000'000),
              rest = std::to_string(value.count() % 1'000'000'000);
  rest.insert(0, 9 - rest.size(), '0');
  rest.resize(rest.find_last_not_of('0') + 1);  // npos + 1 is 0: no fraction
  return rest.empty() ? text : text + "." + rest;
}
inline std::string show_value(const EnvironmentVariable&, int value) { return std::to_string(value); }
inline std::string show_value(const EnvironmentVariable& v, const std::optional<int>& value) {
  return value ? std::to_string(*value) : v.default_text;
}
inline std::string show_value(const EnvironmentVariable&, bool value) { return value ? "ON" : "OFF"; }
template <class Enum>
requires std::is_enum_v<Enum> std::string show_value(const EnvironmentVariable& v, Enum value) {
  std::string_view rest = v.choices;
  for (int i = 0; i < static_cast<int>(value); ++i) rest.remove_prefix(rest.find('|') + 1);
  return std::string(rest.substr(0, rest.find('|')));
}
template <std::size_t kRoom>
std::string show_value(const EnvironmentVariable& v, const FixedText<kRoom>& value) {
  return value.empty() ? v.default_text : std::string(value.view());
}
inline std::string show_value(const EnvironmentVariable& v, const NameFilter& value) {
  return value.is_set() ? std::string(value.list.view()) : v.default_text;
}

//! @brief The row, tied to the member that holds its value: a variable without one cannot be written.
template <auto kMember>
constexpr EnvironmentVariable kept_in(EnvironmentVariable v) noexcept {
  v.read = [](const EnvironmentVariable& row, std::string_view text, Environment& environment) noexcept {
    return read_value(row, text, environment.*kMember);
  };
  v.show = [](const EnvironmentVariable& row, const Environment& environment) {
    return show_value(row, environment.*kMember);
  };
  return v;
}

}  // namespace detail

//! @brief Every variable. README has the short form; `ep_bench doctor` prints it with the values in force.
inline constexpr EnvironmentVariable kEnvironmentTable[] = {
    detail::kept_in<&Environment::heap_bytes>(
        {.name = "MORI_SHMEM_HEAP_SIZE",
         .type = EnvironmentType::bytes,
         .low = 1,
         .high = std::int64_t{1} << 60,
         .default_text = "no limit",
         .allowed = "Give a whole number of bytes, or a number and K, M, G or T (powers of 1024) without a blank: 4G, "
                    "1.5G, 512MiB.",
         .effect = "the most that this process's symmetric heaps may take for each communicator",
         .where = "Communicator",
         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::socket_interfaces>(
        {.name = "MORI_SOCKET_IFNAME",
         .type = EnvironmentType::interface_list,
         .high = 15,
         .default_text = "all",
         .allowed = "Give interface names divided by commas, of up to 15 characters, without blanks: eth,ib0 takes all "
                    "that begin so, =eth0,ib0 those two alone, ^docker or ^=docker0 all but those.",
         .effect = "the network interfaces to meet on: names are prefixes, unless = stands before the list; ^ before "
                   "it excludes",
         .where = "TCP bootstrap",
         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::bootstrap_timeout>(
        {.name = "MORI_BOOTSTRAP_TIMEOUT",
         .type = EnvironmentType::seconds,
         .low = 1'000'000,
         .high = 86'400'000'000'000,
         .default_text = "300",
         .allowed = "Give seconds, 0.001 to 86400, without a unit: 300, 0.5.",
         .effect = "seconds that a rank waits for the others to come to a collective host call",
         .where = "bootstrap",
         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::node_id>(
        {.name = "MORI_NODE_ID",
         .type = EnvironmentType::text,
         .default_text = "the host's own",
         .allowed = "Give up to 63 printable characters without a blank at either end, the same on every rank of a "
                    "node: rack3-node7.",
         .effect = "ranks with the same text are of one node, whatever the host's identity says",
         .where = "node grouping",
         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::rdma_devices>(
        {.name = "MORI_RDMA_DEVICES",
         .type = EnvironmentType::device_list,
         .high = 63,
         .default_text = "all",
         .allowed = "Give whole device names divided by commas, without blanks: mlx5_0,mlx5_1 takes those two alone, "
                    "^mlx5_2 all but that one.",
         .effect = "the network devices to send through; ^ before the list excludes",
         .where = "fabric::Verbs",
         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::gid_index>({.name = "MORI_IB_GID_INDEX",
                                              .type = EnvironmentType::integer,
                                              .high = 255,
                                              .default_text = "not set",
                                              .allowed = "Give a whole number, 0 to 255: 3.",
                                              .effect = "which of a port's addresses to send from",
                                              .where = "fabric::Verbs",
                                              .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::rdma_traffic_class>({.name = "MORI_RDMA_TC",
                                                       .type = EnvironmentType::integer,
                                                       .high = 255,
                                                       .default_text = "not set",
                                                       .allowed = "Give a whole number, 0 to 255: 104.",
                                                       .effect = "traffic class of the packets, which switches sort by",
                                                       .where = "fabric::Verbs",
                                                       .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::rdma_service_level>({.name = "MORI_RDMA_SL",
                                                       .type = EnvironmentType::integer,
                                                       .high = 15,
                                                       .default_text = "not set",
                                                       .allowed = "Give a whole number, 0 to 15: 3.",
                                                       .effect = "service level of the queue pairs",
                                                       .where = "fabric::Verbs",
                                                       .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::queue_pairs_per_peer>({.name = "MORI_NUM_QP_PER_PE",
                                                         .type = EnvironmentType::integer,
                                                         .low = 1,
                                                         .high = 64,
                                                         .default_text = "4",
                                                         .allowed = "Give a whole number, 1 to 64: 4.",
                                                         .effect = "queue pairs to each peer",
                                                         .where = "fabric::Verbs",
                                                         .standing = EnvironmentStanding::acts}),
    detail::kept_in<&Environment::launch_config_mode>(
        {.name = "MORI_EP_LAUNCH_CONFIG_MODE",
         .type = EnvironmentType::choice,
         .choices = "MANUAL|AUTO",
         .default_text = "MANUAL",
         .allowed = "Give MANUAL or AUTO.",
         .effect = "where launch parameters come from: the configuration and the call, or a tuned table",
         .where = "launch tables",
         .standing = EnvironmentStanding::planned}),
    detail::kept_in<&Environment::tuning_config>(
        {.name = "MORI_EP_TUNING_CONFIG",
         .type = EnvironmentType::path,
         .default_text = "not set",
         .allowed = "Give a file's path, up to 4095 characters: /etc/mori_ep/tuned.json.",
         .effect = "the tuned table that AUTO reads instead of the built-in ones",
         .where = "launch tables",
         .standing = EnvironmentStanding::planned}),
    detail::kept_in<&Environment::tuning_scope>({.name = "MORI_TUNING_SCOPE",
                                                 .type = EnvironmentType::choice,
                                                 .choices = "quick|full",
                                                 .default_text = "quick",
                                                 .allowed = "Give quick or full.",
                                                 .effect = "how many launch parameters tuning tries",
                                                 .where = "launch tables",
                                                 .standing = EnvironmentStanding::planned}),
    detail::kept_in<&Environment::profiler>({.name = "ENABLE_PROFILER",
                                             .type = EnvironmentType::flag,
                                             .default_text = "OFF",
                                             .allowed = "Give ON, 1, true or yes; or OFF, 0, false or no.",
                                             .effect = "records when each phase of a call begins and ends",
                                             .where = "tracing",
                                             .standing = EnvironmentStanding::planned}),
    // What torch reads for its own process groups, which users of mori's Python package set beside the others.
    {.name = "GLOO_SOCKET_IFNAME",
     .type = EnvironmentType::text,
     .default_text = "",
     .allowed = "",
     .effect = "torch's own; here the interface is MORI_SOCKET_IFNAME",
     .where = "not read",
     .standing = EnvironmentStanding::not_read},
    {.name = "MASTER_ADDR",
     .type = EnvironmentType::text,
     .default_text = "",
     .allowed = "",
     .effect = "torch's own; here the application names the address to meet at",
     .where = "not read",
     .standing = EnvironmentStanding::not_read},
    {.name = "MASTER_PORT",
     .type = EnvironmentType::text,
     .default_text = "",
     .allowed = "",
     .effect = "torch's own; here the application names the port to meet at",
     .where = "not read",
     .standing = EnvironmentStanding::not_read},
};

inline Status Environment::take(const EnvironmentVariable& variable, const char* text) noexcept {
  if (variable.read == nullptr || text == nullptr || *text == '\0') return {};
  return variable.read(variable, text, *this);
}

template <class Lookup>
Result<Environment> Environment::parse(Lookup&& lookup) noexcept(noexcept(lookup(""))) {
  Environment environment;
  for (auto const& variable : kEnvironmentTable)
    if (Status status = environment.take(variable, variable.read == nullptr ? nullptr : lookup(variable.name));
        !status.ok())
      return status;
  return environment;
}

inline Result<Environment> Environment::from_process() noexcept {
  return parse([](const char* name) noexcept -> const char* { return std::getenv(name); });
}

//! @brief A row of the table and the value in force.
struct EnvironmentValue {
  const EnvironmentVariable* variable;
  std::string value;
};

//! @brief Every row of the table, with the value that `environment` gives it; none where mori_ep does not read it.
[[nodiscard]] inline std::vector<EnvironmentValue> describe(const Environment& environment) {
  std::vector<EnvironmentValue> values;
  for (auto const& variable : kEnvironmentTable)
    values.push_back({&variable, variable.show == nullptr ? "" : variable.show(variable, environment)});
  return values;
}

//! @brief A variable named MORI_... that the table does not have.
struct UnknownVariable {
  std::string name;
  const char* nearest;  //!< the name of the table that it may be meant for, or nullptr
};

//! @brief The name of the table that `name` is most like, or nullptr when more than a third of it would have to change.
[[nodiscard]] inline const char* nearest_variable(std::string_view name) {
  const char* nearest = nullptr;
  std::size_t fewest = name.size() / 3 + 1;
  for (auto const& variable : kEnvironmentTable)
    if (auto const edits = detail::edits_between(name, variable.name); edits < fewest) {
      fewest = edits;
      nearest = variable.name;
    }
  return nearest;
}

//! @brief The variables of a process named MORI_... that nothing here knows: misspelt, or another program's.
//! @param entries "NAME=text" each, up to a nullptr, as in POSIX's environ
[[nodiscard]] inline std::vector<UnknownVariable> unknown_variables(const char* const* entries) {
  std::vector<UnknownVariable> unknown;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    std::string_view const entry = *entries, name = entry.substr(0, entry.find('='));
    // MORI_EP_TEST_... steer this repository's own tests.
    bool known = !name.starts_with("MORI_") || name.starts_with("MORI_EP_TEST_");
    for (auto const& variable : kEnvironmentTable) known = known || name == variable.name;
    if (!known) unknown.push_back({std::string(name), nearest_variable(name)});
  }
  return unknown;
}

}  // namespace mori_ep
