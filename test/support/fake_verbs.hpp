// SPDX-License-Identifier: MIT
//! @file A table of verbs without a device: objects that are counted, calls that fail when they are told to, and send
//!       queues that write into the peers' memory, refuse now and then, and die.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mori_ep/fabric/verbs/api.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

//! @brief What the fake devices are and do. One at a time; ranks are threads, each of which says who it is.
struct FakeVerbs {
  struct Port {
    ibv_port_state state = IBV_PORT_ACTIVE;
    std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
    ibv_mtu mtu = IBV_MTU_4096;
    std::vector<std::pair<ibv_gid_type, std::string>> gids = {{IBV_GID_TYPE_ROCE_V2, "fe80::1"},
                                                              {IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1"}};
  };
  struct Device {
    std::string name = "fake0";
    std::vector<Port> ports = {Port{}};
  };
  std::vector<Device> devices = {Device{}};
  std::uint32_t max_message = 1 << 20;
  int max_qp_wr = 1 << 14, max_cqe = 1 << 15;

  // What goes wrong: on rank `failing_rank` (-1: all) the call of that name, after it has worked some times.
  std::string failing_call;
  int failing_rank = -1, failing_errno = EIO;
  std::atomic<int> works_before{0};

  // The data path.
  std::uint64_t seed = 1;
  int refuse_one_in = 0;                 //!< writes at which a post stops with ENOMEM
  std::atomic<int> dead_queue_pair{-1};  //!< by number: its next write fails, and all after it
  std::atomic<int> invalid_write{-1};    //!< by number of its queue pair: its next post is refused with EINVAL

  std::atomic<int> live{0};     //!< objects that nobody has released
  std::atomic<int> misuse{0};   //!< releases out of order, overruns, accesses outside what is registered
  std::atomic<int> told{0};     //!< completions
  std::atomic<int> written{0};  //!< writes that were done
  std::vector<int> access;      //!< flags of all registrations
  std::vector<ibv_qp_attr> to_rtr, to_rts;
  std::mutex mutex;

  static inline FakeVerbs* now = nullptr;
  static inline thread_local int rank = 0;

  FakeVerbs() { now = this; }
  ~FakeVerbs() { now = nullptr; }

  [[nodiscard]] bool fails(std::string_view call) {
    if (call != failing_call || (failing_rank >= 0 && rank != failing_rank) || works_before-- > 0) return false;
    errno = failing_errno;
    return true;
  }

  struct Pair;
  struct Context : ibv_context {
    std::size_t index = 0;
    int domains = 0;
  };
  struct Domain : ibv_pd {
    int objects = 0;
  };
  struct Queue : ibv_cq {
    std::vector<Pair*> pairs;
    std::deque<ibv_wc> done;
  };
  struct Write {
    ibv_send_wr write;
    ibv_sge source;
  };
  struct Pair : ibv_qp {
    Queue* queue = nullptr;
    Domain* domain = nullptr;
    std::uint32_t most = 0, in_queue = 0;  // a place is free again with a completion, told or not
    std::deque<Write> writes;
    std::uint32_t untold = 0;  // places that silent writes hold until one is told
    bool broken = false;
    Rng luck{1};
  };
  struct Region : ibv_mr {};
  std::map<std::uint32_t, Region*> regions;  // by key
  std::uint32_t next_key = 100, next_number = 7;

  static std::shared_ptr<const fabric::verbs::Api> api();
  [[nodiscard]] bool reaches(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) {
    std::lock_guard const lock(mutex);
    auto const found = regions.find(key);
    if (found == regions.end()) return false;
    auto const begin = reinterpret_cast<std::uint64_t>(found->second->addr);
    return address >= begin && address + bytes <= begin + found->second->length;
  }
  void run(Pair& pair);
};

//! Does what was posted, some of it now and some later.
inline void FakeVerbs::run(Pair& pair) {
  bool const dies = dead_queue_pair == static_cast<int>(pair.qp_num);
  for (int n = pair.luck.in(0, 40); !pair.writes.empty() && (n > 0 || pair.broken); --n) {
    Write const next = pair.writes.front();
    pair.writes.pop_front();
    ibv_wc wc{};
    wc.wr_id = next.write.wr_id;
    wc.qp_num = pair.qp_num;
    bool const in_range = next.write.num_sge == 0 ||
                          (reaches(next.write.wr.rdma.rkey, next.write.wr.rdma.remote_addr, next.source.length) &&
                           reaches(next.source.lkey, next.source.addr, next.source.length));
    wc.status = pair.broken ? IBV_WC_WR_FLUSH_ERR
                : dies      ? IBV_WC_RETRY_EXC_ERR
                : in_range  ? IBV_WC_SUCCESS
                            : IBV_WC_REM_ACCESS_ERR;
    pair.broken = pair.broken || wc.status != IBV_WC_SUCCESS;
    ++pair.untold;
    if (wc.status == IBV_WC_SUCCESS) {
      ++written;
      auto* const to = reinterpret_cast<std::byte*>(next.write.wr.rdma.remote_addr);
      auto const* const from = reinterpret_cast<const std::byte*>(next.source.addr);
      if (next.write.num_sge == 0) {
      } else if (next.source.length == sizeof(std::uint64_t) && next.write.wr.rdma.remote_addr % 8 == 0) {
        std::uint64_t word = 0;
        std::memcpy(&word, from, sizeof(word));
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(word, std::memory_order_release);
      } else {
        std::memcpy(to, from, next.source.length);
      }
      if ((next.write.send_flags & IBV_SEND_SIGNALED) == 0) continue;
    }
    pair.in_queue -= std::exchange(pair.untold, 0);
    ++told;
    pair.queue->done.push_back(wc);
    if (pair.queue->done.size() > static_cast<std::size_t>(pair.queue->cqe)) ++misuse;
  }
}

inline std::shared_ptr<const fabric::verbs::Api> FakeVerbs::api() {
  using Fake = FakeVerbs;
  fabric::verbs::Api api;
  api.get_device_list = [](int* count) -> ibv_device** {
    if (now->fails("ibv_get_device_list")) return nullptr;
    *count = static_cast<int>(now->devices.size());
    auto** const list = new ibv_device*[now->devices.size() + 1];
    for (std::size_t i = 0; i < now->devices.size(); ++i) list[i] = reinterpret_cast<ibv_device*>(&now->devices[i]);
    ++now->live;
    return list;
  };
  api.free_device_list = [](ibv_device** list) {
    delete[] list;
    --now->live;
  };
  api.get_device_name = [](ibv_device* device) { return reinterpret_cast<Device*>(device)->name.c_str(); };
  api.open_device = [](ibv_device* device) -> ibv_context* {
    if (now->fails("ibv_open_device")) return nullptr;
    auto* const context = new Context{};
    context->index = static_cast<std::size_t>(reinterpret_cast<Device*>(device) - now->devices.data());
    ++now->live;
    return context;
  };
  api.close_device = [](ibv_context* context) {
    if (static_cast<Context*>(context)->domains != 0) ++now->misuse;
    delete static_cast<Context*>(context);
    --now->live;
    return 0;
  };
  api.query_device = [](ibv_context* context, ibv_device_attr* attributes) {
    if (now->fails("ibv_query_device")) return now->failing_errno;
    *attributes = {};
    attributes->phys_port_cnt =
        static_cast<std::uint8_t>(now->devices[static_cast<Context*>(context)->index].ports.size());
    attributes->max_qp_wr = now->max_qp_wr;
    attributes->max_cqe = now->max_cqe;
    return 0;
  };
  api.query_port = [](ibv_context* context, std::uint8_t number, _compat_ibv_port_attr* into) {
    if (now->fails("ibv_query_port")) return now->failing_errno;
    const Port& port = now->devices[static_cast<Context*>(context)->index].ports[number - 1u];
    auto* const attributes = reinterpret_cast<ibv_port_attr*>(into);
    attributes->state = port.state;
    attributes->link_layer = port.link_layer;
    attributes->active_mtu = port.mtu;
    attributes->max_msg_sz = now->max_message;
    attributes->gid_tbl_len = 16;
    attributes->lid = 3;
    return 0;
  };
  api.query_gid = [](ibv_context* context, std::uint32_t number, std::uint32_t index, ibv_gid_entry* entry,
                     std::uint32_t, std::size_t) {
    const Port& port = now->devices[static_cast<Context*>(context)->index].ports[number - 1u];
    if (index >= port.gids.size()) return ENODATA;
    entry->gid_type = port.gids[index].first;
    return ::inet_pton(AF_INET6, port.gids[index].second.c_str(), entry->gid.raw) == 1 ? 0 : EINVAL;
  };
  api.alloc_pd = [](ibv_context* context) -> ibv_pd* {
    if (now->fails("ibv_alloc_pd")) return nullptr;
    auto* const domain = new Domain{};
    domain->context = context;
    ++static_cast<Context*>(context)->domains;
    ++now->live;
    return domain;
  };
  api.dealloc_pd = [](ibv_pd* pd) {
    auto* const domain = static_cast<Domain*>(pd);
    if (domain->objects != 0) ++now->misuse;
    --static_cast<Context*>(domain->context)->domains;
    delete domain;
    --now->live;
    return 0;
  };
  api.reg_mr = [](ibv_pd* pd, void* address, std::size_t bytes, int access) -> ibv_mr* {
    if (now->fails("ibv_reg_mr")) return nullptr;
    auto* const region = new Region{};
    region->pd = pd;
    region->addr = address;
    region->length = bytes;
    ++static_cast<Domain*>(pd)->objects;
    ++now->live;
    std::lock_guard const lock(now->mutex);
    region->lkey = region->rkey = now->next_key++;
    now->regions[region->lkey] = region;
    now->access.push_back(access);
    return region;
  };
  api.reg_dmabuf_mr = [](ibv_pd* pd, std::uint64_t, std::size_t bytes, std::uint64_t iova, int, int access) -> ibv_mr* {
    if (now->fails("ibv_reg_dmabuf_mr")) return nullptr;
    return Fake::api()->reg_mr(pd, reinterpret_cast<void*>(iova), bytes, access | IBV_ACCESS_ON_DEMAND);
  };
  api.dereg_mr = [](ibv_mr* mr) {
    --static_cast<Domain*>(mr->pd)->objects;
    {
      std::lock_guard const lock(now->mutex);
      now->regions.erase(mr->lkey);
    }
    delete static_cast<Region*>(mr);
    --now->live;
    return 0;
  };
  api.create_cq = [](ibv_context* context, int entries, void*, ibv_comp_channel*, int) -> ibv_cq* {
    if (now->fails("ibv_create_cq")) return nullptr;
    if (entries > now->max_cqe) ++now->misuse;
    auto* const queue = new Queue{};
    queue->context = context;
    queue->cqe = entries;
    ++now->live;
    return queue;
  };
  api.destroy_cq = [](ibv_cq* cq) {
    if (!static_cast<Queue*>(cq)->pairs.empty()) ++now->misuse;
    delete static_cast<Queue*>(cq);
    --now->live;
    return 0;
  };
  api.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attributes) -> ibv_qp* {
    if (now->fails("ibv_create_qp")) return nullptr;
    if (attributes->cap.max_send_wr > static_cast<std::uint32_t>(now->max_qp_wr)) ++now->misuse;
    auto* const pair = new Pair{};
    pair->domain = static_cast<Domain*>(pd);
    pair->queue = static_cast<Queue*>(attributes->send_cq);
    pair->most = attributes->cap.max_send_wr;
    pair->queue->pairs.push_back(pair);
    ++pair->domain->objects;
    ++now->live;
    std::lock_guard const lock(now->mutex);
    pair->qp_num = now->next_number++;
    pair->luck = Rng(mix(now->seed, pair->qp_num));
    return pair;
  };
  api.modify_qp = [](ibv_qp* qp, ibv_qp_attr* attributes, int) {
    const char* const call = attributes->qp_state == IBV_QPS_INIT  ? "INIT"
                             : attributes->qp_state == IBV_QPS_RTR ? "RTR"
                             : attributes->qp_state == IBV_QPS_RTS ? "RTS"
                                                                   : "ERR";
    if (now->fails(call)) return now->failing_errno;
    if (attributes->qp_state == IBV_QPS_ERR) static_cast<Pair*>(qp)->broken = true;
    std::lock_guard const lock(now->mutex);
    if (attributes->qp_state == IBV_QPS_RTR) now->to_rtr.push_back(*attributes);
    if (attributes->qp_state == IBV_QPS_RTS) now->to_rts.push_back(*attributes);
    return 0;
  };
  api.destroy_qp = [](ibv_qp* qp) {
    auto* const pair = static_cast<Pair*>(qp);
    std::erase(pair->queue->pairs, pair);
    --pair->domain->objects;
    delete pair;
    --now->live;
    return 0;
  };
  api.wc_status_str = [](ibv_wc_status status) -> const char* {
    return status == IBV_WC_RETRY_EXC_ERR    ? "transport retry counter exceeded"
           : status == IBV_WC_REM_ACCESS_ERR ? "remote access error"
                                             : "Work Request Flushed Error";
  };
  api.post_send = [](ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
    auto* const pair = static_cast<Pair*>(qp);
    for (ibv_send_wr* write = first; write != nullptr; write = write->next) {
      bool const invalid = now->invalid_write == static_cast<int>(pair->qp_num);
      bool const refused = now->refuse_one_in > 0 && pair->luck.one_in(now->refuse_one_in);
      if (invalid || refused || pair->in_queue == pair->most) {
        if (!invalid && !refused) ++now->misuse;  // the books say what there is room for
        *bad = write;
        return invalid ? EINVAL : ENOMEM;
      }
      if ((write->send_flags & ~static_cast<unsigned>(IBV_SEND_SIGNALED)) != 0 || write->opcode != IBV_WR_RDMA_WRITE)
        ++now->misuse;
      pair->writes.push_back({*write, write->num_sge == 0 ? ibv_sge{} : *write->sg_list});
      ++pair->in_queue;
    }
    return 0;
  };
  api.poll_cq = [](ibv_cq* cq, int most, ibv_wc* into) {
    if (now->fails("ibv_poll_cq")) return -now->failing_errno;
    auto* const queue = static_cast<Queue*>(cq);
    for (Pair* pair : queue->pairs) now->run(*pair);
    int n = 0;
    for (; n < most && !queue->done.empty(); ++n) {
      into[n] = queue->done.front();
      queue->done.pop_front();
    }
    return n;
  };
  return std::make_shared<const fabric::verbs::Api>(api);
}

}  // namespace mori_ep::test

#endif
