// SPDX-License-Identifier: MIT
#include "support/coded_play.hpp"

namespace mori_ep::test {
template std::string play_coded<CastOp>(const CodedRound&);
template std::string play_coded<BothWaysOp>(const CodedRound&);
template std::string play_coded<CarriedOp>(const CodedRound&);
template std::string play_coded<CodedDispatchOp>(const CodedRound&);
template std::string play_coded<CarriedDispatchOp>(const CodedRound&);
}  // namespace mori_ep::test
