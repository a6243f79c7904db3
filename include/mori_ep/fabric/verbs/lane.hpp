// SPDX-License-Identifier: MIT
//! @file One queue pair of a connected fabric: its books, and requests as chains of writes.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mori_ep/fabric/verbs/owned.hpp"
#include "mori_ep/fabric/verbs/send_queue.hpp"
#include "mori_ep/fabric/verbs/split.hpp"

namespace mori_ep::fabric::verbs {

//! @brief Memory as a write names it.
struct Registered {
  std::uint64_t base = 0;
  std::uint32_t key = 0;
};

//! @brief Room for the writes of one ibv_post_send.
struct Chain {
  static constexpr std::uint32_t kMost = 64;
  ibv_send_wr writes[kMost];
  ibv_sge sources[kMost];
};

//! @brief A queue pair to a peer.
//!
//! Each write is named by the lane and its number, so that one completion ends all requests up to it. Only some writes
//! ask for one: the last of every chain, and one in kTellEvery.
class Lane {
 public:
  static constexpr std::uint32_t kTellEvery = 16;

  Lane(QueuePair qp, std::uint32_t index, int depth, int writes, std::uint64_t max_message)
      : qp_(std::move(qp)),
        index_(index),
        split_{max_message},
        queue_(depth, writes),
        capacity_(static_cast<std::uint32_t>(writes)) {}

  struct Memory {
    Registered arena, peer, peer_board, signals;
    std::uint64_t* signal_words = nullptr;  //!< [depth], at signals.base
  };
  void set_memory(const Memory& memory) noexcept { memory_ = memory; }

  [[nodiscard]] ibv_qp* qp() const noexcept { return qp_.get(); }
  [[nodiscard]] SendQueue& queue() noexcept { return queue_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] std::int64_t status() const noexcept { return status_; }
  //! @brief Was a request taken of which not all writes are posted?
  [[nodiscard]] bool has_rest() const noexcept { return rest_.has_value(); }

  //! @brief Takes requests, in order, as far as they go; all of them once the queue pair has failed, while it has room.
  //! @return how many
  std::size_t post(const Api& api, Chain& chain, std::span<const WorkRequest> requests, std::uint64_t now_ns) {
    std::size_t taken = 0;
    while (taken < requests.size()) {
      if (queue_.failed()) {
        if (!queue_.has_room()) break;
        queue_.take_in_vain(requests[taken++].id, now_ns);
        continue;
      }
      std::size_t const more = post_chain(api, chain, requests.subspan(taken), now_ns);
      if (more == 0 && !queue_.failed()) break;
      taken += more;
    }
    return taken;
  }
  //! @brief Posts what is left of a request that was taken.
  void post_rest(const Api& api, Chain& chain) {
    if (has_rest() && !queue_.failed()) (void)post_chain(api, chain, {}, 0);
  }

  //! @brief What a completion says of write `number`. Of many that fail, the first tells why.
  void complete(std::uint32_t number, ibv_wc_status status, const char* text) {
    if (status != IBV_WC_SUCCESS) fail(number, status, text);
    queue_.finish(number);
  }
  void fail(std::uint32_t number, std::int64_t status, std::string_view text) {
    if (!queue_.failed()) {
      reason_ = text;
      status_ = status;
      rest_.reset();
    }
    queue_.fail(number);
  }
  //! @brief No completion comes any more: whatever has not completed has failed.
  void lose(std::int64_t status, std::string_view text) {
    fail(queue_.finished() + 1, status, text);
    queue_.finish(queue_.posted());
  }

 private:
  struct Rest {
    WorkRequest request;
    std::uint64_t next = 0;  // part
    std::size_t place = 0;   // of its signal
  };

  //! Posts the rest, then as many of the requests as there is room for, in one call of the device.
  std::size_t post_chain(const Api& api, Chain& chain, std::span<const WorkRequest> requests, std::uint64_t now_ns) {
    std::uint32_t const most = std::min(queue_.room(), Chain::kMost);
    std::uint32_t built = 0;
    if (rest_) {
      std::uint64_t const parts = split_.parts(rest_->request);
      for (std::uint64_t i = rest_->next; i < parts && built < most; ++i)
        build(chain, built++, rest_->request, i, rest_->place);
      if (rest_->next + built < parts) requests = {};
    }
    std::uint32_t const of_rest = built;
    std::uint32_t count = 0;
    for (; count < requests.size() && count < queue_.places_left() && built < most; ++count) {
      std::uint64_t const parts = split_.parts(requests[count]);
      // What fits into no chain is posted piece by piece; anything else is worth waiting for until it fits.
      if (parts > most - built && parts <= std::min(capacity_, Chain::kMost)) break;
      for (std::uint64_t i = 0; i < parts && built < most; ++i)
        build(chain, built++, requests[count], i, queue_.place(count));
    }
    if (built == 0) return 0;
    for (std::uint32_t i = 0; i < built; ++i) {
      chain.writes[i].next = i + 1 < built ? &chain.writes[i + 1] : nullptr;
      bool const tell = i + 1 == built || (queue_.posted() + i) % kTellEvery == 0;
      chain.writes[i].send_flags = tell ? IBV_SEND_SIGNALED : 0;
    }
    ibv_send_wr* bad = nullptr;
    int const code = error_number(api.post_send(qp_.get(), chain.writes, &bad));
    std::uint32_t posted = built;
    if (code != 0)
      posted = bad >= chain.writes && bad < chain.writes + built ? static_cast<std::uint32_t>(bad - chain.writes) : 0;
    std::size_t const taken = settle(requests.first(count), of_rest, posted, now_ns);
    // No room, whatever the books say: it comes with completions. Anything else is the end of this queue pair.
    if (code != 0 && code != ENOMEM && code != EAGAIN && code != ENOBUFS) {
      fail(queue_.posted() + 1, code, "ibv_post_send: " + errno_text(code));
      ibv_qp_attr stop{};
      stop.qp_state = IBV_QPS_ERR;  // what was posted before is flushed
      (void)api.modify_qp(qp_.get(), &stop, IBV_QP_STATE);
    }
    return taken;
  }

  void build(Chain& chain, std::uint32_t at, const WorkRequest& request, std::uint64_t i, std::size_t place) noexcept {
    Part const part = split_.part(request, i);
    ibv_send_wr& write = chain.writes[at];
    ibv_sge& source = chain.sources[at];
    write = {};
    write.wr_id = std::uint64_t{index_} << 32 | static_cast<std::uint32_t>(queue_.posted() + at + 1);
    write.opcode = IBV_WR_RDMA_WRITE;
    const Registered& there = part.signal && request.to_board ? memory_.peer_board : memory_.peer;
    write.wr.rdma.remote_addr = there.base + part.remote_offset;
    write.wr.rdma.rkey = there.key;
    if (part.signal) {
      memory_.signal_words[place] = request.signal;
      source = {memory_.signals.base + place * sizeof(request.signal), sizeof(request.signal), memory_.signals.key};
    } else {
      source = {memory_.arena.base + part.local_offset, static_cast<std::uint32_t>(part.bytes), memory_.arena.key};
    }
    write.sg_list = &source;
    write.num_sge = part.bytes == 0 ? 0 : 1;
  }

  //! The books after `posted` writes, of which the first `of_rest` are of the rest.
  std::size_t settle(std::span<const WorkRequest> requests, std::uint32_t of_rest, std::uint32_t posted,
                     std::uint64_t now_ns) {
    std::uint32_t number = queue_.posted();
    queue_.post(posted);
    if (rest_) {
      std::uint32_t const gone = std::min(of_rest, posted);
      rest_->next += gone;
      number += gone;
      posted -= gone;
      if (rest_->next == split_.parts(rest_->request)) rest_.reset();
    }
    std::size_t taken = 0;
    for (; posted > 0; ++taken) {
      const WorkRequest& request = requests[taken];
      std::uint64_t const parts = split_.parts(request);
      auto const gone = static_cast<std::uint32_t>(std::min<std::uint64_t>(parts, posted));
      if (gone < parts) rest_ = Rest{request, gone, queue_.place()};
      number += static_cast<std::uint32_t>(parts);
      queue_.take(request.id, number, now_ns);
      posted -= gone;
    }
    return taken;
  }

  QueuePair qp_;
  std::uint32_t index_;
  Split split_;
  SendQueue queue_;
  std::uint32_t capacity_;
  Memory memory_;
  std::optional<Rest> rest_;
  std::string reason_;
  std::int64_t status_ = 0;
};

}  // namespace mori_ep::fabric::verbs

#endif
