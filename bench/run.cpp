// SPDX-License-Identifier: MIT
#include "run.hpp"

#include <cstddef>
#include <utility>

#include "element_types.hpp"
#include "meeting.hpp"
#include "operators.hpp"
#include "quantisation.hpp"
#include "rank.hpp"

namespace ep_bench {

using mori_ep::Communicator;

mori_ep::EpDispatchCombineConfig operator_config(const Config& c) {
  return {.hidden_dim = c.hidden,
          .max_num_inp_token_per_rank = c.max_tokens(),
          .num_experts_per_rank = c.experts_per_rank(),
          .num_experts_per_token = c.topk,
          .num_experts = c.experts,
          .scale_dim = c.quant == "fp8-carried" ? static_cast<int>((c.hidden + 127) / 128) : 0,
          .scale_type_size = c.quant == "fp8-carried" ? static_cast<int>(sizeof(float)) : 0,
          .rows_per_put = c.rows_per_put,
          .block_num = c.launch.block_num,
          .warp_num_per_block = c.launch.warp_per_block};
}

mori_ep::Footprint footprint(const Config& config) {
  return with_element_type(config.dtype, [&]<class T>(T) {
    auto const of = [&]<class Ep>(Ep*) {
      auto const result = Ep::footprint(operator_config(config), config.world, config.gpu_per_node());
      if (!result.ok()) throw UsageError(result.message());
      return *result;
    };
    if (config.schedule == "internode") return of(static_cast<NodesOf<mori_ep::schedule::InterNode, T>*>(nullptr));
    if (config.schedule == "v1") return of(static_cast<NodesOf<mori_ep::schedule::InterNodeV1, T>*>(nullptr));
    return with_quant(config, [&]<class Quant>(Quant*) { return of(static_cast<NodeOf<Quant>*>(nullptr)); });
  });
}

std::int64_t needed_bytes(const Problem& problem) {
  const Config& c = problem.config();
  mori_ep::Footprint const arena = footprint(c);
  // Pages of rows that no token is sent to are never touched; all else of an arena is counted as if it were.
  auto const row = static_cast<std::int64_t>(c.row_bytes());
  std::int64_t const capacity = std::int64_t{c.world} * c.world * c.max_tokens();
  auto const rows = static_cast<std::int64_t>(problem.rows()), tokens = std::int64_t{c.world} * c.tokens;
  auto const travels = static_cast<std::int64_t>(c.received_bytes + c.combined_bytes);
  std::int64_t const as_elements = c.quant == "none" ? 0 : rows * row + tokens * row;  // the checks' own
  return c.world * static_cast<std::int64_t>(arena.bytes) - (capacity - rows) * travels + 2 * tokens * row +
         (c.external ? rows * row : 0) + as_elements;
}

Outcome run_rank(const Problem& problem, const Communicator& comm, Meeting meeting, const Progress& progress) {
  const Config& config = problem.config();
  if (config.transport == "verbs") return run_over_verbs(problem, comm, meeting, progress);
  if (config.schedule == "internode") return run_internode(problem, comm, meeting, progress);
  if (config.schedule == "v1") return run_v1(problem, comm, meeting, progress);
  if (config.quant != "none") return run_coded(problem, comm, meeting, progress);
  return with_element_type(config.dtype, [&]<class T>(T) {
    return run_with<NodeOf<mori_ep::quant::None<T>>>(problem, comm, meeting, progress);
  });
}

Outcome run_threads(const Problem& problem, const mori_ep::Environment& environment, const Progress& progress) {
  int const world = problem.config().world;
  MeetingBoard board;
  Outcome out;
  mori_ep::LocalWorld(world, problem.config().gpu_per_node(), environment.bootstrap_timeout, environment)
      .run([&](Communicator& comm) {
        Outcome of_rank = run_rank(problem, comm, Meeting(board, comm.rank(), world), progress);
        if (comm.rank() == 0) out = std::move(of_rank);
      })
      .or_throw();
  return out;
}

}  // namespace ep_bench
