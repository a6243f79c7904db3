// SPDX-License-Identifier: MIT
//! @file Objects of libibverbs, each released by its owner.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <utility>

#include "mori_ep/fabric/verbs/api.hpp"

namespace mori_ep::fabric::verbs {

//! @brief A T that `Api::*kRelease` ends. Owners must end in the reverse order of what was made.
template <class T, int (*Api::*kRelease)(T*)>
class Owned {
 public:
  Owned() noexcept = default;
  Owned(const Api& api, T* object) noexcept : api_(&api), object_(object) {}
  Owned(Owned&& other) noexcept : api_(other.api_), object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) (void)(api_->*kRelease)(object_);
  }
  [[nodiscard]] T* get() const noexcept { return object_; }
  [[nodiscard]] T* operator->() const noexcept { return object_; }
  [[nodiscard]] explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  const Api* api_ = nullptr;
  T* object_ = nullptr;
};

using Context = Owned<ibv_context, &Api::close_device>;
using ProtectionDomain = Owned<ibv_pd, &Api::dealloc_pd>;
using MemoryRegion = Owned<ibv_mr, &Api::dereg_mr>;
using CompletionQueue = Owned<ibv_cq, &Api::destroy_cq>;
using QueuePair = Owned<ibv_qp, &Api::destroy_qp>;

}  // namespace mori_ep::fabric::verbs

#endif
