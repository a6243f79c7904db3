// SPDX-License-Identifier: MIT
#include "support/coded_play.hpp"

namespace mori_ep::test {
template std::string play_coded<CodedInterNodeOp>(const CodedRound&);
template std::string play_coded<CodedRelayOp>(const CodedRound&);
template std::string play_coded<CodedExactRelayOp>(const CodedRound&);
template std::string play_coded<CarriedRelayOp>(const CodedRound&);
}  // namespace mori_ep::test
