// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs/send_queue.hpp"

#include <vector>

#include "support/catch.hpp"

namespace mori_ep::fabric::verbs {

namespace {

WorkId id(std::uint16_t sequence) { return {.sequence = sequence, .epoch = 9}; }
//! A request of so many writes, posted whole.
void send(SendQueue& queue, std::uint16_t sequence, std::uint32_t writes) {
  queue.take(id(sequence), queue.posted() + writes, 0);
  queue.post(writes);
}
//! The sequences that have ended, failures negative.
std::vector<int> ended(SendQueue& queue) {
  std::vector<int> all;
  while (queue.has_ended()) {
    auto const end = queue.tell();
    all.push_back(end.ok ? end.entry.id.sequence : -end.entry.id.sequence);
  }
  return all;
}
using Ends = std::vector<int>;

}  // namespace

TEST_CASE("one completion ends all before it; room comes back by writes and by requests told") {
  SendQueue queue(4, 8);
  for (std::uint16_t i = 1; i <= 4; ++i) send(queue, i, 2);
  REQUIRE((!queue.has_room() && queue.room() == 0));
  queue.finish(1);  // the first half of the first
  REQUIRE((!queue.has_ended() && queue.room() == 1));
  queue.finish(6);
  REQUIRE((queue.room() == 6 && !queue.has_room()));
  REQUIRE(ended(queue) == Ends{1, 2, 3});
  REQUIRE((queue.has_room() && queue.places_left() == 3));
  queue.finish(4);  // old news
  REQUIRE(queue.room() == 6);
  queue.finish(8);
  REQUIRE(ended(queue) == Ends{4});
}

TEST_CASE("a failure is that of its request and of all after it, once the device is through with them") {
  SendQueue queue(8, 16);
  for (std::uint16_t i = 1; i <= 4; ++i) send(queue, i, 2);
  queue.fail(5);  // of the third
  queue.finish(5);
  REQUIRE(queue.failed());
  REQUIRE(queue.room() == 0);
  REQUIRE(ended(queue) == Ends{1, 2});
  queue.take_in_vain(id(5), 0);
  REQUIRE(!queue.has_ended());  // sources are read until the flush is told
  queue.finish(6);
  REQUIRE(ended(queue) == Ends{-3});
  queue.finish(8);
  REQUIRE(ended(queue) == Ends{-4, -5});
  queue.take_in_vain(id(6), 0);
  REQUIRE(ended(queue) == Ends{-6});
}

TEST_CASE("a request that is half posted when its queue pair fails ends with the writes that were posted") {
  SendQueue queue(4, 8);
  send(queue, 1, 1);
  queue.take(id(2), queue.posted() + 100, 0);
  queue.post(3);
  queue.fail(queue.posted() + 1);  // as when a post is refused
  queue.finish(3);
  REQUIRE(ended(queue) == Ends{1});
  queue.finish(4);
  REQUIRE(ended(queue) == Ends{-2});
}

TEST_CASE("flushes before a refused post fail their requests, too") {
  SendQueue queue(4, 8);
  send(queue, 1, 1);
  send(queue, 2, 1);
  queue.fail(3);
  queue.fail(2);
  queue.finish(2);
  REQUIRE(ended(queue) == Ends{1, -2});
}

TEST_CASE("numbers of writes may wrap") {
  SendQueue queue(4, 1 << 20);
  std::uint16_t sequence = 0;
  for (std::uint64_t writes = 0; writes < (std::uint64_t{1} << 33); writes += 1 << 19) {
    send(queue, sequence++, 1 << 19);
    REQUIRE(!queue.has_ended());
    queue.finish(queue.posted());
    REQUIRE(ended(queue).size() == 1);
    REQUIRE(queue.room() == 1 << 20);
  }
}

}  // namespace mori_ep::fabric::verbs
