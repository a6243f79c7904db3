// SPDX-License-Identifier: MIT
#include "support/machine.hpp"

#include <new>

namespace mori_ep::test {

int prepare_machine() { return 0; }

std::byte* take_memory(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{256}));
}
void give_memory(std::byte* memory, std::size_t) noexcept { ::operator delete (memory, std::align_val_t{256}); }

}  // namespace mori_ep::test
