// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>
#include <vector>

#include "mori_ep/fabric/proxy/queue_pair.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using fabric::kLatestDuplicate;
using fabric::proxy::kNowhere;
using fabric::proxy::Place;
using fabric::proxy::PlaceQueue;
using fabric::proxy::Window;

TEST_CASE("queues of places share one table") {
  std::vector<Place> next(8, kNowhere);
  PlaceQueue a, b;
  REQUIRE(a.empty());
  for (Place p : {3u, 0u, 7u}) a.push(p, next);
  for (Place p : {1u, 6u}) b.push(p, next);
  std::vector<Place> got;
  for (; !a.empty(); a.pop(next)) got.push_back(a.first());
  REQUIRE(got == std::vector<Place>{3, 0, 7});
  a.push(3, next);
  REQUIRE(a.first() == 3);
  got.clear();
  for (; !b.empty(); b.pop(next)) got.push_back(b.first());
  REQUIRE(got == std::vector<Place>{1, 6});
}

TEST_CASE("a window tells requests apart by 12 bits, in whatever order they end, and twice") {
  std::uint64_t const seed = env_number("MORI_EP_TEST_SEED", 1);
  INFO("MORI_EP_TEST_SEED=" << seed);
  Rng rng(seed);
  for (int const depth : {1, 2, 3, 100, 2048, 4095}) {
    Window window(depth);
    auto const most = std::min(static_cast<std::uint32_t>(depth), kLatestDuplicate);
    REQUIRE(window.room() == most);
    struct Request {
      Place place;
      std::uint16_t sequence;
      int number;
    };
    std::vector<Request> in_flight, over;
    int posted = 0, wrong = 0, duplicates = 0;
    while (posted < 20000) {
      for (int n = rng.in(0, 5); n > 0 && window.room() > 0; --n, ++posted) {
        in_flight.push_back({static_cast<Place>(posted), window.sequence(0), posted});
        window.posted(static_cast<Place>(posted));
      }
      wrong += in_flight.size() > most || window.in_flight() != in_flight.size() ? 1 : 0;
      if (!in_flight.empty() && !rng.one_in(3)) {
        // Now and then the oldest stays for long.
        std::size_t const i = rng.next() % in_flight.size();
        if (i == 0 && in_flight.size() > 1 && !rng.one_in(20)) continue;
        wrong += window.ended(in_flight[i].sequence) == in_flight[i].place ? 0 : 1;
        over.push_back({0, in_flight[i].sequence, posted});
        in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (!over.empty() && rng.one_in(4)) {
        std::size_t const i = rng.next() % over.size();
        if (posted - over[i].number < static_cast<int>(kLatestDuplicate)) {
          wrong += window.ended(over[i].sequence) == kNowhere ? 0 : 1;
          ++duplicates;
        }
        over.erase(over.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (const Request& r : in_flight) wrong += window.ended(r.sequence) == r.place ? 0 : 1;
    INFO("depth " << depth);
    REQUIRE(wrong == 0);
    REQUIRE(duplicates > 100);
    REQUIRE(window.in_flight() == 0);
    REQUIRE(window.room() == most);
  }
}

}  // namespace mori_ep::test
