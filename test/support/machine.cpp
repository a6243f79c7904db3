// SPDX-License-Identifier: MIT
#include "support/machine.hpp"

#include <new>

#include "support/process_world.hpp"
#include "support/shared_pool.hpp"

namespace mori_ep::test {

int prepare_machine() { return 0; }
void begin_process() {}

std::byte* take_memory(std::size_t bytes) {
  if (ranks_are_processes() && !ProcessWorld::in_child()) return shared_pool().take(bytes);
  return static_cast<std::byte*>(::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{256}));
}
void give_memory(std::byte* memory, std::size_t bytes) noexcept {
  if (!ranks_are_processes() || !shared_pool().has(memory)) return ::operator delete (memory, std::align_val_t{256});
  if (!ProcessWorld::in_child()) shared_pool().give(memory, bytes);
}

}  // namespace mori_ep::test
