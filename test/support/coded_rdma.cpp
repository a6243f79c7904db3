// SPDX-License-Identifier: MIT
#include "support/coded_play.hpp"

namespace mori_ep::test {
template std::string play_coded<CodedRdmaOp>(const CodedRound&);
template std::string play_coded<CodedRdmaRelayOp>(const CodedRound&);
}  // namespace mori_ep::test
