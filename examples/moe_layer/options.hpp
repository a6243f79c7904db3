// SPDX-License-Identifier: MIT
//! @file The command line of the moe_layer example, and the routes it asks for.
#pragma once

#include <cstdint>
#include <string>

#include "workload/routes.hpp"

namespace moe_layer {

struct Options {
  std::string routes_file;          //!< empty: the built-in generator
  std::string routing = "uniform";  //!< what the generator makes
  std::int64_t tokens = 4096;       //!< of the whole world
  int world = 8;
  int experts = 0;  //!< 0: 64, or what the log names
  int topk = 8;
  int hidden = 256;
  int intermediate = 128;
  std::string dtype = "bf16";
  std::string quant = "none";  //!< what combine's rows are on the way
  int rounds = 3;
  std::uint64_t seed = 1;
};

//! @brief Fills options and routes; prints what is wrong or what was asked for.
//! @return -1: run; else the program's exit code, 2 for wrong usage
int read_command_line(int argc, char** argv, Options& options, mori_ep::workload::Routes& routes);

}  // namespace moe_layer
