// SPDX-License-Identifier: MIT
// The table of compositions says what these tests run, and README says what the table says.
#include <fstream>
#include <iterator>
#include <string>

#include "support/catch.hpp"
#include "support/coded.hpp"
#include "support/compositions.hpp"
#include "support/operators.hpp"

namespace mori_ep::test {

namespace {

std::vector<Composition> all_compositions() {
  auto all = compositions<Op<bf16>, Op<fp16>, Op<float>, NetworkOp<bf16>, NetworkOp<fp16>,
                          NetworkOp<fp16, reduce::WeightedSum, std::int64_t>, NetworkOp<float>, RelayOp<bf16>,
                          RelayOp<fp16>, RelayOp<float>, RoundingRelayOp, DeviceRelayOp, CastOp, BothWaysOp, CarriedOp,
                          CodedDispatchOp, CarriedDispatchOp, CodedInterNodeOp, CodedRelayOp, CodedExactRelayOp,
                          CarriedRelayOp, CodedRdmaOp, CodedRdmaRelayOp>();
  auto const verbs = verbs_compositions();
  all.insert(all.end(), verbs.begin(), verbs.end());
  return all;
}

std::string readme() {
  std::ifstream in(MORI_EP_README);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("what the tests run is told as tested") {
  for (auto const& c : all_compositions()) {
    INFO(c.transport << ", " << c.network << ", " << c.schedule << ", " << c.machine << (c.codes ? ", codes" : ""));
    REQUIRE(c.support == Support::tested);
  }
}

TEST_CASE("what is told as tested on the host, the tests run") {
  auto const all = all_compositions();
  for (const SupportRow& row : kSupportMatrix) {
    if (std::string(row.machine) != "host") continue;
    for (bool codes : {false, true}) {
      bool run = false;
      for (auto const& c : all)
        run |= c.codes == codes && c.transport == row.transport && c.network == row.network &&
               c.machine == row.machine && c.schedule.starts_with(row.schedule) &&
               (c.schedule.size() == std::string(row.schedule).size() || c.schedule.ends_with("(exact)"));
      INFO(row.transport << ", " << row.network << ", " << row.schedule << (codes ? ", codes" : ""));
      REQUIRE(run == ((codes ? row.codes : row.elements) == Support::tested));
    }
  }
}

TEST_CASE("a composition that the table does not have is planned") {
  STATIC_REQUIRE(support_of<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host>() == Support::tested);
  STATIC_REQUIRE(support_of("rdma", "none", "AsyncLL", "hip", false) == Support::planned);
  STATIC_REQUIRE(support_of("hybrid", "loopback", "InterNodeV1 (exact)", "host", true) == Support::tested);
  STATIC_REQUIRE(support_of("hybrid", "loopback", "InterNodeV1LL", "host", true) == Support::planned);
}

TEST_CASE("README has both tables") {
  std::string const text = readme();
  REQUIRE(!text.empty());
  for (const SupportRow& row : kSupportMatrix) {
    std::string const line = std::string("| ") + row.transport + " | " + row.network + " | " + row.schedule + " | " +
                             row.machine + " | " + name(row.elements) + " | " + name(row.codes) + " |";
    INFO(line);
    REQUIRE(text.find(line) != std::string::npos);
  }
  for (exec::ConversionTarget target : exec::kConversionTargets) {
    auto const how = [&]<class C>(C) {
      return exec::converts_by_instruction<C>(target) ? " instruction |" : " computed |";
    };
    std::string const line = std::string("| ") + name(target) + " |" + how(fp8_e4m3()) + how(fp8_e5m2()) +
                             how(fp8_e4m3_fnuz()) + how(fp4x2_e2m1());
    INFO(line);
    REQUIRE(text.find(line) != std::string::npos);
  }
}

}  // namespace mori_ep::test
