// SPDX-License-Identifier: MIT
//! @file The report: as a table, CSV or JSON.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "gpu/gpu.hpp"
#include "machine.hpp"
#include "mori_ep/ep_dispatch_combine.hpp"
#include "problem.hpp"
#include "run.hpp"

namespace ep_bench {

//! @brief One configuration and what was measured of it.
struct Row {
  Config config;
  mori_ep::Footprint footprint;
  double hop_bytes = 0;  // see Problem
  double staging_bytes = 0;
  std::vector<std::size_t> rows_received;  //!< by rank
  std::size_t rows = 0;                    //!< of all ranks
  std::size_t pairs = 0;                   //!< unique (token, node) pairs
  std::size_t crossing = 0;                //!< rows that cross a network
  std::size_t link_rows = 0;               //!< rows over the links of the device with most of them, one way
  Outcome mori;
  std::optional<Outcome> mpi;
};

struct Report {
  Machine machine;
  std::optional<Devices> devices;  //!< where the ranks ran, if not on the host
  std::string flags;               //!< the command line
  std::string mpi;                 //!< the MPI library, when there is a comparison with it
  std::uint64_t seed = 0;
  bool per_rank = false;
  bool stats = false;
  const Ceilings* ceilings = nullptr;
  std::vector<Row> rows;

  [[nodiscard]] bool ok() const {
    for (auto const& row : rows)
      if (!row.mori.ok() || (row.mpi && !row.mpi->ok())) return false;
    return true;
  }
};

enum class Format { table, csv, json };

void print(std::ostream& out, const Report& report, Format format);

//! @brief What every column means.
void explain(std::ostream& out);

[[nodiscard]] std::string version();
//! @brief Empty, or why this build's timings say nothing.
[[nodiscard]] std::string unfit_build();

}  // namespace ep_bench
