// SPDX-License-Identifier: MIT
//! @file Ports of RDMA devices, their addresses, and which of them a rank uses.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>

#include "mori_ep/env/text.hpp"
#include "mori_ep/fabric/verbs/trouble.hpp"

namespace mori_ep::fabric::verbs {

//! @brief What packets to and from an address look like: ranks reach each other only with the same.
enum class GidKind : std::uint8_t { infiniband, roce_v1, roce_v2_ipv6, roce_v2_ipv4 };

[[nodiscard]] constexpr const char* name(GidKind kind) noexcept {
  switch (kind) {
    case GidKind::infiniband:
      return "InfiniBand";
    case GidKind::roce_v1:
      return "RoCE v1";
    case GidKind::roce_v2_ipv6:
      return "RoCE v2, IPv6";
    case GidKind::roce_v2_ipv4:
      return "RoCE v2, IPv4";
  }
  return "unknown";
}

using GidBytes = std::array<std::uint8_t, 16>;

//! @brief An entry of a port's table of addresses.
struct Gid {
  int index = 0;
  GidKind kind = GidKind::infiniband;
  GidBytes bytes{};

  //! @brief Is it ::ffff:a.b.c.d?
  [[nodiscard]] static constexpr bool holds_ipv4(const GidBytes& bytes) noexcept {
    for (std::size_t i = 0; i < 10; ++i)
      if (bytes[i] != 0) return false;
    return bytes[10] == 0xff && bytes[11] == 0xff;
  }
  [[nodiscard]] constexpr bool link_local() const noexcept {
    return holds_ipv4(bytes) ? bytes[12] == 169 && bytes[13] == 254 : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  }
  [[nodiscard]] std::string text() const {
    char address[INET6_ADDRSTRLEN] = "";
    (void)::inet_ntop(AF_INET6, bytes.data(), address, sizeof(address));
    return std::to_string(index) + " " + address;
  }
};

//! @brief The entry with that index, or the best: the newest RoCE, IPv4 before IPv6, an address that routers know before
//!        one of the link; of InfiniBand the first. nullptr when there is none.
[[nodiscard]] inline const Gid* choose_gid(std::span<const Gid> gids, std::optional<int> index) noexcept {
  const Gid* best = nullptr;
  auto const worth = [](const Gid& gid) { return 2 * static_cast<int>(gid.kind) + (gid.link_local() ? 0 : 3); };
  for (const Gid& gid : gids)
    if (index ? gid.index == *index : best == nullptr || worth(gid) > worth(*best)) best = &gid;
  return best;
}

struct Port {
  std::string device;
  int number = 1;
  bool active = false, ethernet = false, needs_grh = false;
  int mtu = 1024;  //!< bytes of a packet
  std::uint16_t lid = 0;
  std::uint64_t max_message = std::uint64_t{1} << 30;
  std::vector<Gid> gids;

  [[nodiscard]] std::string text() const { return device + " port " + std::to_string(number); }
};

struct PortChoice {
  std::size_t port = 0;
  Gid gid;
};

namespace detail {
//! Where a list names a device; all the same where it names none.
inline std::size_t place_in(const NameFilter& filter, std::string_view device) noexcept {
  if (!filter.is_set() || filter.excludes()) return 0;
  std::string const names = "," + std::string(filter.names()) + ",";
  return names.find("," + std::string(device) + ",");
}
}  // namespace detail

//! @brief The ranks of a host take its ports in turn, in the order in which MORI_RDMA_DEVICES names their devices.
//! @param turn how many ranks of the host come before this one
[[nodiscard]] inline Trouble choose_port(std::span<const Port> ports, const NameFilter& filter,
                                         std::optional<int> gid_index, int turn, PortChoice& choice) {
  std::vector<std::size_t> admitted, active, addressed;
  std::string all, down, listed;
  auto const list = [](std::string& text, const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const Port& port = ports[i];
    if (i == 0 || ports[i - 1].device != port.device) list(all, port.device);
    if (!filter.admits(port.device)) continue;
    admitted.push_back(i);
    if (!port.active) {
      list(down, port.text() + " is not");
      continue;
    }
    active.push_back(i);
    for (const Gid& gid : port.gids) list(listed, gid.text());
    // InfiniBand reaches a port of its subnet by its LID alone.
    if (choose_gid(port.gids, gid_index) != nullptr || (!port.ethernet && !gid_index)) addressed.push_back(i);
  }
  if (ports.empty()) return Trouble{.step = Step::find_device}.with_text("none");
  if (admitted.empty())
    return Trouble{.step = Step::admit_device}.with_text(std::string(filter.list.view()) + ", where there is " + all);
  if (active.empty()) return Trouble{.step = Step::find_active_port}.with_text("none: " + down);
  std::string const where = ports[active.front()].text();
  if (addressed.empty() && gid_index)
    return Trouble{.step = Step::find_gid_index, .value = *gid_index}.with_text(
        std::to_string(*gid_index) + ", and " + where + " has " + (listed.empty() ? "none" : listed));
  if (addressed.empty()) return Trouble{.step = Step::find_gid}.with_text("none at " + where);
  std::sort(addressed.begin(), addressed.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(detail::place_in(filter, ports[a].device), a) <
           std::pair(detail::place_in(filter, ports[b].device), b);
  });
  choice.port = addressed[static_cast<std::size_t>(turn) % addressed.size()];
  const Gid* const gid = choose_gid(ports[choice.port].gids, gid_index);
  choice.gid = gid == nullptr ? Gid{} : *gid;
  return {};
}

//! @brief enum ibv_mtu: 256 bytes are 1, 4096 are 5.
[[nodiscard]] constexpr int mtu_code(int bytes) noexcept {
  int code = 1;
  while (code < 5 && (256 << code) <= bytes) ++code;
  return code;
}
[[nodiscard]] constexpr int mtu_bytes(int code) noexcept { return 128 << (code < 1 ? 1 : code > 5 ? 5 : code); }
static_assert(mtu_code(1024) == 3 && mtu_bytes(3) == 1024 && mtu_code(4096) == 5 && mtu_code(4095) == 4);

}  // namespace mori_ep::fabric::verbs
