// SPDX-License-Identifier: MIT
//! @file The devices of this host, and the one that a rank has opened.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/fabric/verbs/address.hpp"
#include "mori_ep/fabric/verbs/options.hpp"
#include "mori_ep/fabric/verbs/owned.hpp"

namespace mori_ep::fabric::verbs {

//! @brief An opened device, its limits, and the port and address that were chosen.
struct Device {
  Context context;
  ibv_device_attr limits{};
  Port port;
  Gid gid;
};

namespace detail {

[[nodiscard]] inline GidKind kind_of(const ibv_gid_entry& entry, const GidBytes& bytes) noexcept {
  if (entry.gid_type == IBV_GID_TYPE_ROCE_V1) return GidKind::roce_v1;
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return GidKind::infiniband;
  return Gid::holds_ipv4(bytes) ? GidKind::roce_v2_ipv4 : GidKind::roce_v2_ipv6;
}

[[nodiscard]] inline std::vector<Gid> gids_of(const Api& api, ibv_context* context, int port, int entries) {
  std::vector<Gid> gids;
  for (int index = 0; index < entries; ++index) {
    ibv_gid_entry entry{};
    // An entry that is empty is refused (ENODATA).
    if (api.query_gid(context, static_cast<std::uint32_t>(port), static_cast<std::uint32_t>(index), &entry, 0,
                      sizeof(entry)) != 0)
      continue;
    Gid gid{.index = index};
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.kind = kind_of(entry, gid.bytes);
    if (std::any_of(gid.bytes.begin(), gid.bytes.end(), [](std::uint8_t b) { return b != 0; })) gids.push_back(gid);
  }
  return gids;
}

[[nodiscard]] inline Trouble ports_of(const Api& api, const std::string& device, ibv_context* context,
                                      const ibv_device_attr& limits, std::vector<Port>& ports) {
  for (int number = 1; number <= limits.phys_port_cnt; ++number) {
    ibv_port_attr attributes{};
    Port port{.device = device, .number = number, .gids = {}};
    if (int const code = api.query_port(context, static_cast<std::uint8_t>(number),
                                        reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
        code != 0)
      return refused_call(Step::query_port, error_number(code), port.text());
    port.active = attributes.state == IBV_PORT_ACTIVE;
    port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.needs_grh = (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
    port.mtu = mtu_bytes(attributes.active_mtu);
    port.lid = attributes.lid;
    port.max_message = std::clamp<std::uint64_t>(attributes.max_msg_sz, 4096, std::uint64_t{1} << 30);
    port.gids = gids_of(api, context, number, attributes.gid_tbl_len);
    ports.push_back(std::move(port));
  }
  return {};
}

}  // namespace detail

//! @brief Opens the device that choose_port() takes. Devices that are not admitted are not opened; one that this process
//!        may not open, as in a container that was given another, is no reason to do without the rest.
[[nodiscard]] inline Trouble open_device(const Api& api, const Options& options, int turn, Device& into) {
  int count = 0;
  ibv_device** const list = api.get_device_list(&count);
  if (list == nullptr && errno == ENOSYS) return Trouble{.step = Step::find_device}.with_text("none in this kernel");
  if (list == nullptr) return refused_call(Step::get_device_list, errno, "");
  struct Freed {
    const Api& api;
    ibv_device** list;
    ~Freed() { api.free_device_list(list); }
  } const freed{api, list};

  std::vector<Device> opened;
  std::vector<Port> ports;
  std::vector<std::size_t> device_of;  // by port
  Trouble not_opened;
  for (int i = 0; i < count; ++i) {
    std::string const device = api.get_device_name(list[i]);
    std::size_t const before = ports.size();
    Device found;
    if (options.devices.admits(device)) {
      found.context = Context(api, api.open_device(list[i]));
      if (!found.context) not_opened = refused_call(Step::open_device, errno, device);
    }
    if (!found.context) {
      ports.push_back({.device = device, .gids = {}});
    } else {
      if (int const code = api.query_device(found.context.get(), &found.limits); code != 0)
        return refused_call(Step::query_device, error_number(code), device);
      if (Trouble t = detail::ports_of(api, device, found.context.get(), found.limits, ports)) return t;
      opened.push_back(std::move(found));
    }
    device_of.resize(device_of.size() + ports.size() - before, opened.empty() ? 0 : opened.size() - 1);
  }
  PortChoice choice;
  if (Trouble t = choose_port(ports, options.devices, options.gid_index, turn, choice))
    return t.step == Step::find_active_port && not_opened ? not_opened : t;
  into = std::move(opened[device_of[choice.port]]);
  into.port = std::move(ports[choice.port]);
  into.gid = choice.gid;
  return {};
}

}  // namespace mori_ep::fabric::verbs

#endif
