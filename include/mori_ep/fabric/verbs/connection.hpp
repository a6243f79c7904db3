// SPDX-License-Identifier: MIT
//! @file A queue pair's way from its creation to its connection.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <cstdint>
#include <cstring>

#include "mori_ep/fabric/verbs/card.hpp"
#include "mori_ep/fabric/verbs/device.hpp"

namespace mori_ep::fabric::verbs {

//! @brief A reliable connection's queue pair, whose `writes` writes all may be in flight. Peers may write, nothing else.
[[nodiscard]] inline Trouble create_queue_pair(const Api& api, const Device& device, ibv_pd* pd, ibv_cq* cq, int writes,
                                               QueuePair& into) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = static_cast<std::uint32_t>(writes);
  attributes.cap.max_recv_wr = 1;  // some drivers want one
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  into = QueuePair(api, api.create_qp(pd, &attributes));
  if (!into) return refused_call(Step::create_qp, errno, device.port.text());
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = static_cast<std::uint8_t>(device.port.number);
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (int const code =
          api.modify_qp(into.get(), &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      code != 0)
    return refused_call(Step::to_init, error_number(code), device.port.text());
  return {};
}

//! @brief The other end of a queue pair.
struct FarEnd {
  const Card& card;
  int rank;
  std::uint32_t queue_pair_number;
};

[[nodiscard]] inline Trouble connect_queue_pair(const Api& api, const Device& device, const Options& options,
                                                const Card& mine, int rank, const FarEnd& far, int queue_pair,
                                                ibv_qp* qp) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = static_cast<ibv_mtu>(mtu_code(path_mtu(mine, far.card)));
  receive.dest_qp_num = far.queue_pair_number;
  receive.rq_psn = first_psn(far.card, rank, queue_pair);
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = 12;
  ibv_ah_attr& way = receive.ah_attr;
  way.port_num = static_cast<std::uint8_t>(device.port.number);
  way.dlid = far.card.lid;
  way.sl = static_cast<std::uint8_t>(options.service_level.value_or(0));
  if (options.gid_index || needs_gids(mine, far.card)) {
    way.is_global = 1;
    std::memcpy(way.grh.dgid.raw, far.card.gid.data(), far.card.gid.size());
    way.grh.sgid_index = static_cast<std::uint8_t>(device.gid.index);
    way.grh.hop_limit = 64;  // with 1 the first router drops it
    way.grh.traffic_class = static_cast<std::uint8_t>(options.traffic_class.value_or(0));
  }
  if (int const code = api.modify_qp(qp, &receive,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      code != 0)
    return refused_call(Step::to_receive, error_number(code), device.port.text(), far.rank);
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = static_cast<std::uint8_t>(options.ack_timeout);
  send.retry_cnt = 6;  // soft-RoCE takes seven for ever, and would not tell of a peer that is gone
  send.rnr_retry = 7;  // for ever: nobody waits for a receive, so nobody is told to
  send.sq_psn = first_psn(mine, far.rank, queue_pair);
  send.max_rd_atomic = 1;
  if (int const code = api.modify_qp(qp, &send,
                                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
      code != 0)
    return refused_call(Step::to_send, error_number(code), device.port.text(), far.rank);
  return {};
}

}  // namespace mori_ep::fabric::verbs

#endif
