// SPDX-License-Identifier: MIT
// expect-error: exec::host::Stream: the work does not fit a queue slot. Pass large arguments by pointer.
#include <array>

#include "mori_ep/mori_ep.hpp"

struct Work {
#ifdef GOOD
  std::array<char, 64> arguments;
#else
  std::array<char, 4096> arguments;
#endif
  void operator()() const {}
};

void submit(mori_ep::exec::Host::Stream& stream, const Work& work) { stream.submit(work); }
