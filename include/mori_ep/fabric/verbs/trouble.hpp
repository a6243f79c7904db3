// SPDX-License-Identifier: MIT
//! @file What can go wrong while a fabric is connected, in a form that ranks can tell each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "mori_ep/error.hpp"

namespace mori_ep::fabric::verbs {

//! @brief What a rank was at. Its words are in kSteps, since pointers mean nothing to another process.
enum class Step : std::uint8_t {
  none,
  world,
  arena,
  num_qp_per_pe,
  depth,
  ack_timeout,
  load_library,
  load_function,
  get_device_list,
  find_device,
  admit_device,
  open_device,
  query_device,
  query_port,
  find_active_port,
  find_gid,
  find_gid_index,
  alloc_pd,
  reg_arena,
  reg_dmabuf,
  reg_signals,
  create_cq,
  create_qp,
  to_init,
  to_receive,
  to_send,
  same_version,
  same_queue_pairs,
  same_network
};

struct StepWords {
  Errc code;
  const char* field;
  const char* hint;
};

inline constexpr const char* kFewer =
    "Ask for fewer queue pairs (MORI_NUM_QP_PER_PE) or a smaller depth, or see what other processes hold of the "
    "device.";
inline constexpr const char* kUnreachable =
    "Can the two devices reach each other? MORI_RDMA_DEVICES and MORI_IB_GID_INDEX choose others.";

//! @brief In the order of Step.
inline constexpr StepWords kSteps[] = {
    {Errc::ok, "", ""},
    {Errc::invalid_config, "world", "Connect fewer ranks: those that share a network, of a sub-communicator."},
    {Errc::invalid_argument, "arena bytes", "Give the address and size of the memory that peers may write to."},
    {Errc::invalid_config, "num_qp_per_pe", "Give 1 to 64 (MORI_NUM_QP_PER_PE)."},
    {Errc::invalid_config, "depth", "Give 1 to 4095 requests."},
    {Errc::invalid_config, "ack_timeout", "Give 17 to 31."},
    {Errc::fabric_error, "libibverbs.so.1",
     "Install it where ranks run. Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers. RHEL: rdma-core."},
    {Errc::fabric_error, "function of libibverbs.so.1", "Install rdma-core 32 or later where ranks run."},
    {Errc::system_error, "ibv_get_device_list", "Does this process see /sys/class/infiniband and /dev/infiniband?"},
    {Errc::fabric_error, "RDMA devices",
     "Is there a card with its driver (ibv_devices), and has the container its files (docker run --device "
     "/dev/infiniband)? Without a card, rdma_rxe makes a device of a network interface."},
    {Errc::invalid_environment, "MORI_RDMA_DEVICES", "Name devices that are there, or unset it."},
    {Errc::system_error, "ibv_open_device", "May this process open /dev/infiniband/uverbs*?"},
    {Errc::system_error, "ibv_query_device", ""},
    {Errc::system_error, "ibv_query_port", ""},
    {Errc::fabric_error, "RDMA ports that are ACTIVE",
     "Bring a port up (ip link set DEVICE up; ibstat shows why it is not), or admit other devices with "
     "MORI_RDMA_DEVICES."},
    {Errc::fabric_error, "GIDs of ports that are ACTIVE",
     "Give the port's network interface an address: RoCE makes its GIDs from it."},
    {Errc::invalid_environment, "MORI_IB_GID_INDEX", "Give an index that is there (the text lists them), or unset it."},
    {Errc::system_error, "ibv_alloc_pd", ""},
    {Errc::system_error, "ibv_reg_mr",
     "RDMA locks the arena in memory: raise the limit (ulimit -l unlimited, docker run --ulimit memlock=-1), or "
     "register a GPU's memory by its dmabuf."},
    {Errc::system_error, "ibv_reg_dmabuf_mr",
     "Neither by its dmabuf nor by its address can this memory be registered: see whether device and GPU driver do "
     "peer-to-peer (dmabuf, nvidia-peermem)."},
    {Errc::system_error, "ibv_reg_mr of the signals", "Raise the limit on locked memory: ulimit -l unlimited."},
    {Errc::system_error, "ibv_create_cq", kFewer},
    {Errc::system_error, "ibv_create_qp", kFewer},
    {Errc::system_error, "ibv_modify_qp to INIT", ""},
    {Errc::system_error, "ibv_modify_qp to RTR", kUnreachable},
    {Errc::system_error, "ibv_modify_qp to RTS", kUnreachable},
    {Errc::protocol_mismatch, "fabric version", "All ranks must run the same version."},
    {Errc::config_mismatch, "num_qp_per_pe", "Every rank must be given the value of rank 0 (MORI_NUM_QP_PER_PE)."},
    {Errc::config_mismatch, "network",
     "All ranks must use the same kind of network and address, as rank 0: MORI_RDMA_DEVICES and MORI_IB_GID_INDEX "
     "choose."},
};
static_assert(sizeof(kSteps) / sizeof(*kSteps) == static_cast<std::size_t>(Step::same_network) + 1);

//! @brief A step that failed, as plain bytes.
struct Trouble {
  Step step = Step::none;
  std::int32_t rank = -1, peer = -1;
  std::int64_t value = 0, limit = Error::kNoLimit;
  char text[sizeof(Error::text)] = "";

  [[nodiscard]] explicit operator bool() const noexcept { return step != Step::none; }
  [[nodiscard]] Trouble with_text(std::string_view what) const noexcept {
    Trouble trouble = *this;
    Error const cut = Error{}.with_text(what);
    std::memcpy(trouble.text, cut.text, sizeof(text));
    return trouble;
  }
  //! @brief The same on every rank.
  [[nodiscard]] Error error() const noexcept {
    const StepWords& words = kSteps[static_cast<std::size_t>(step <= Step::same_network ? step : Step::same_version)];
    return Error{.code = words.code,
                 .phase = Phase::create,
                 .rank = rank,
                 .peer = peer,
                 .field = words.field,
                 .value = value,
                 .limit = limit,
                 .hint = words.hint}
        .with_text({text, ::strnlen(text, sizeof(text))});
  }
};
static_assert(std::is_trivially_copyable_v<Trouble>);

//! @brief errno's own words.
[[nodiscard]] inline std::string errno_text(int number) {
  char buffer[64] = "";
  return ::strerror_r(number, buffer, sizeof(buffer));
}
//! @param where the device and port, if one has been chosen
[[nodiscard]] inline Trouble refused_call(Step step, int number, std::string_view where, int peer = -1) {
  std::string text = errno_text(number);
  if (!where.empty()) text += " (" + std::string(where) + ")";
  return Trouble{.step = step, .peer = peer, .value = number}.with_text(text);
}

}  // namespace mori_ep::fabric::verbs
