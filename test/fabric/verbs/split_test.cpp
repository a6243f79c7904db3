// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs/split.hpp"

#include "support/catch.hpp"

namespace mori_ep::fabric::verbs {

TEST_CASE("a request's parts cover its bytes once, in order, and its signal comes last") {
  Split const split{.most = 1000};
  for (Operation const operation : {Operation::put, Operation::signal, Operation::put_signal})
    for (std::uint64_t const bytes : {0ull, 1ull, 999ull, 1000ull, 1001ull, 2000ull, 12345ull, 1ull << 40}) {
      WorkRequest const request{.id = {.operation = operation},
                                .local_offset = 64,
                                .remote_offset = 4096,
                                .bytes = bytes,
                                .signal_offset = 8,
                                .signal = 77};
      std::uint64_t const parts = split.parts(request), runs = split.runs(request);
      REQUIRE(parts >= 1);
      REQUIRE(parts == runs + (operation == Operation::put ? 0 : 1));
      std::uint64_t covered = 0;
      std::uint64_t const step = runs > 100 ? runs - 1 : 1;  // of many the first and the last
      for (std::uint64_t i = 0; i < runs; i += step) {
        Part const part = split.part(request, i);
        REQUIRE((!part.signal && part.bytes <= split.most && part.local_offset == 64 + i * 1000));
        REQUIRE(part.remote_offset - part.local_offset == 4096 - 64);
        covered = i * 1000 + part.bytes;
      }
      REQUIRE(covered == (operation == Operation::signal ? 0 : bytes));
      if (operation == Operation::put) continue;
      Part const last = split.part(request, parts - 1);
      REQUIRE((last.signal && last.remote_offset == 8 && last.bytes == 8));
    }
}

}  // namespace mori_ep::fabric::verbs
