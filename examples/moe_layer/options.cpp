// SPDX-License-Identifier: MIT
// A translation unit of its own: CLI11 takes longer to compile than all the rest of the example.
#include "moe_layer/options.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>

#include "workload/whole_number.hpp"

namespace moe_layer {

int read_command_line(int argc, char** argv, Options& options, mori_ep::workload::Routes& routes) {
  namespace workload = mori_ep::workload;
  CLI::App app{
      "Runs a whole MoE layer on ranks that are threads: dispatch, SwiGLU experts, combine. Every token is compared "
      "with the same layer computed without any dispatch. Exit code: 0 PASS, 1 FAIL, 2 wrong usage."};
  auto* file = app.add_option("--routes", options.routes_file,
                              "Routing log, JSON lines {\"topk_ids\": [...], \"topk_weights\": [...]}");
  app.add_option("--routing", options.routing, std::string("Without a log: ") + workload::kRoutingNames)
      ->capture_default_str()
      ->check(CLI::IsMember({"uniform", "zipf", "grouped", "one-hot"}))
      ->excludes(file);
  auto* tokens = app.add_option("--tokens", options.tokens,
                                "Tokens of the whole world; with a log: its first, repeated when it has fewer")
                     ->capture_default_str()
                     ->check(workload::whole_number(1, 1 << 24));
  app.add_option("--world", options.world, "Ranks")->capture_default_str()->check(workload::whole_number(1, 1024));
  app.add_option("--experts", options.experts, "Experts of the whole world [64, or the log's largest id + 1]")
      ->check(workload::whole_number(1, 1 << 20));
  app.add_option("--topk", options.topk, "Experts per token, without a log")
      ->capture_default_str()
      ->check(workload::whole_number(1, 1 << 10))
      ->excludes(file);
  app.add_option("--hidden", options.hidden, "Elements per token row, a multiple of 16")
      ->capture_default_str()
      ->check(workload::whole_number(16, 1 << 14));
  app.add_option("--intermediate", options.intermediate, "Inner size of an expert, a multiple of 16")
      ->capture_default_str()
      ->check(workload::whole_number(16, 1 << 14));
  app.add_option("--dtype", options.dtype, "Elements of the rows that travel: bf16 or fp32; experts compute in fp32")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--quant", options.quant, "What bf16 rows become on their way back from the experts")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "fp8-cast", "fp8-blockwise", "fp4-blockwise"}));
  app.add_option("--rounds,--layers", options.rounds, "Times the layer runs, each verified; shards move on one rank")
      ->capture_default_str()
      ->check(workload::whole_number(1, 1 << 20));
  app.add_option("--seed", options.seed, "Seed of routes, tokens and weights")
      ->capture_default_str()
      ->check(workload::whole_number(0, UINT64_MAX));

  auto const refuse = [](const std::string& why) {
    std::fprintf(stderr, "moe_layer: %s\n", why.c_str());
    return 2;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.hidden % 16 != 0 || options.intermediate % 16 != 0)
    return refuse("hidden is " + std::to_string(options.hidden) + ", intermediate " +
                  std::to_string(options.intermediate) + ": the expert loops take multiples of 16.");
  if (options.quant != "none" && options.dtype != "bf16")
    return refuse("--quant " + options.quant + " goes with --dtype bf16, not " + options.dtype + ".");
  if (options.quant == "fp4-blockwise" && options.hidden % 32 != 0)
    return refuse("--quant " + options.quant + ": --hidden is " + std::to_string(options.hidden) +
                  ", give a multiple of 32.");
  bool const inferred = options.experts == 0;
  try {
    if (!options.routes_file.empty()) {
      routes = workload::read_route_log(options.routes_file, options.experts);
      if (tokens->count() > 0) routes = workload::take_tokens(routes, options.tokens);
    } else {
      routes = workload::generate_routes(*workload::parse_routing(options.routing), options.tokens, options.topk,
                                         inferred ? 64 : options.experts, options.world, options.seed);
    }
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
  options.experts = routes.experts;
  options.topk = routes.topk;
  options.tokens = routes.tokens();
  if (options.experts % options.world != 0)
    return refuse(std::to_string(options.experts) + " experts" +
                  (inferred && !options.routes_file.empty() ? " (the log's largest id + 1)" : "") +
                  " do not divide among " + std::to_string(options.world) +
                  " ranks. Give --experts a multiple of the world (surplus experts stay idle), or another --world.");
  return -1;
}

}  // namespace moe_layer
