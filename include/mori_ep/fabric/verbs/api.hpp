// SPDX-License-Identifier: MIT
//! @file The functions of libibverbs that a fabric calls: looked up when it is connected, never linked.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include "mori_ep/fabric/verbs/trouble.hpp"

namespace mori_ep::fabric::verbs {

//! @brief A table of functions, so that a test can put others in their place.
struct Api {
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  //! Fills the older part of ibv_port_attr, in which all is that is needed here.
  int (*query_port)(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) = nullptr;
  int (*query_gid)(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                   std::uint32_t flags, std::size_t entry_bytes) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t bytes, int access) = nullptr;
  //! nullptr where the library is older than rdma-core 34.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                           int access) = nullptr;
  int (*dereg_mr)(ibv_mr* mr) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* cq) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* qp) = nullptr;
  const char* (*wc_status_str)(ibv_wc_status status) = nullptr;
  // The data path is inline in verbs.h, by way of the context.
  int (*post_send)(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = ibv_post_send;
  int (*poll_cq)(ibv_cq* cq, int most, ibv_wc* into) = ibv_poll_cq;

  //! @brief The library's own. It stays loaded: device drivers that it has loaded in turn cannot be taken out.
  [[nodiscard]] static Trouble load(std::shared_ptr<const Api>& into, const char* file = "libibverbs.so.1") {
    void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const reason = ::dlerror();
      return Trouble{.step = Step::load_library}.with_text(reason == nullptr ? "" : reason);
    }
    Api api;
    const char* missing = nullptr;
    auto const find = [&](auto& function, const char* symbol, bool optional = false) {
      void* const found = ::dlsym(library, symbol);
      if (found == nullptr && !optional && missing == nullptr) missing = symbol;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(api.get_device_list, "ibv_get_device_list");
    find(api.free_device_list, "ibv_free_device_list");
    find(api.get_device_name, "ibv_get_device_name");
    find(api.open_device, "ibv_open_device");
    find(api.close_device, "ibv_close_device");
    find(api.query_device, "ibv_query_device");
    find(api.query_port, "ibv_query_port");
    find(api.query_gid, "_ibv_query_gid_ex");
    find(api.alloc_pd, "ibv_alloc_pd");
    find(api.dealloc_pd, "ibv_dealloc_pd");
    find(api.reg_mr, "ibv_reg_mr");
    find(api.reg_dmabuf_mr, "ibv_reg_dmabuf_mr", true);
    find(api.dereg_mr, "ibv_dereg_mr");
    find(api.create_cq, "ibv_create_cq");
    find(api.destroy_cq, "ibv_destroy_cq");
    find(api.create_qp, "ibv_create_qp");
    find(api.modify_qp, "ibv_modify_qp");
    find(api.destroy_qp, "ibv_destroy_qp");
    find(api.wc_status_str, "ibv_wc_status_str");
    if (missing != nullptr) {
      (void)::dlclose(library);
      return Trouble{.step = Step::load_function}.with_text(missing);
    }
    into = std::make_shared<const Api>(api);
    return {};
  }
};

//! @brief The number of an error, from what a call of the data path or ibv_modify_qp gave: drivers say it as they like.
[[nodiscard]] inline int error_number(int returned) noexcept {
  return returned == -1 ? errno : returned < 0 ? -returned : returned;
}

}  // namespace mori_ep::fabric::verbs

#endif
