// SPDX-License-Identifier: MIT
//! @file One configuration to measure, its routes, and the bytes they mean. All in plain loops, none in the library's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/launch/launch_params.hpp"
#include "mori_ep/routing/route.hpp"
#include "workload/routes.hpp"

namespace ep_bench {

//! @brief The user asked for something that cannot be; the text names the cure. Exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! @brief What one row of the report stands for.
struct Config {
  int world = 8;
  std::string world_option = "--world";  //!< what gave it, for messages
  int tokens = 0;                        //!< per rank
  int hidden = 0;
  int topk = 0;
  int experts = 0;
  std::string dtype;
  std::string quant = "none";                          //!< see quantisation.hpp
  std::size_t received_bytes = 0, combined_bytes = 0;  //!< of a row: as it is received, and as combine sums it
  std::string schedule;
  std::string transport = "xgmi";
  int nodes = 1;  //!< of ranks side by side; the last may have fewer
  std::string routing;
  bool external = false;  //!< combine stages its rows from a buffer of the caller's
  int rows_per_put = 0;
  mori_ep::launch::LaunchParams launch;
  int iterations = 0;
  int warmup = 0;
  std::uint64_t seed = 0;
  std::string exec = "host";
  bool processes = false;  //!< each rank is a process of its own
  int devices = 0;         //!< of the first so many, rank r is on r * devices / world; 0 on the host
  bool graph = false;      //!< phases are replayed graphs
  bool cold = false;       //!< the second-level cache is swept before each phase

  [[nodiscard]] bool near_only() const noexcept { return transport == "xgmi"; }
  [[nodiscard]] int gpu_per_node() const noexcept { return (world + nodes - 1) / nodes; }
  [[nodiscard]] int node_of(int rank) const noexcept { return rank / gpu_per_node(); }
  [[nodiscard]] int device_of(int rank) const noexcept { return rank * devices / world; }
  [[nodiscard]] bool on_host() const noexcept { return exec == "host"; }
  [[nodiscard]] const char* ranks_as() const noexcept {
    return processes ? "processes" : on_host() ? "threads" : "streams";
  }
  //! @brief A call may bring none, but an operator is made for at least one.
  [[nodiscard]] int max_tokens() const noexcept { return tokens > 0 ? tokens : 1; }
  [[nodiscard]] int experts_per_rank() const noexcept { return experts / world; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return dtype == "fp32" ? 4 : 2; }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return static_cast<std::size_t>(hidden) * element_bytes(); }
};

//! @brief A configuration with the routes of all ranks' tokens, rank by rank.
class Problem {
 public:
  Problem(Config config, mori_ep::workload::Routes routes) : config_(std::move(config)), routes_(std::move(routes)) {
    received_.resize(static_cast<std::size_t>(config_.world));
    for (int rank = 0; rank < config_.world; ++rank)
      for (int token = 0; token < config_.tokens; ++token) {
        int last_node = -1;
        for (int d = 0; d < config_.world; ++d)
          if (goes_to(rank, token, d)) {
            received_[static_cast<std::size_t>(d)].push_back({rank, token});
            bool const far = config_.node_of(d) != config_.node_of(rank);
            far_rows_ += far ? 1 : 0;
            if (config_.node_of(d) != last_node) ++pairs_, far_pairs_ += far ? 1 : 0;
            last_node = config_.node_of(d);
          }
        tokens_sent_ += last_node >= 0 ? 1 : 0;
      }
    for (auto const& rows : received_) rows_ += rows.size();
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  //! @brief [tokens, topk] of one rank.
  [[nodiscard]] const std::int32_t* ids(int rank, int token = 0) const noexcept {
    return routes_.ids.data() + entry(rank, token);
  }
  [[nodiscard]] const float* weights(int rank, int token = 0) const noexcept {
    return routes_.weights.data() + entry(rank, token);
  }
  [[nodiscard]] int owner(std::int32_t expert) const noexcept {
    return expert >= 0 && expert < config_.experts ? expert / config_.experts_per_rank() : -1;
  }
  [[nodiscard]] bool goes_to(int rank, int token, int destination) const noexcept {
    for (int k = 0; k < config_.topk; ++k)
      if (owner(ids(rank, token)[k]) == destination) return true;
    return false;
  }
  //! @brief The sources of the rows that `rank` must receive, in the order it must receive them.
  [[nodiscard]] const std::vector<mori_ep::routing::SourcePos>& received(int rank) const noexcept {
    return received_[static_cast<std::size_t>(rank)];
  }

  //! @brief Rows written by a dispatch, read by a combine; over all ranks.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  //! @brief Unique (token, node) pairs, the source's own node among them; those of other nodes; (token, rank) pairs of
  //!        other nodes.
  [[nodiscard]] std::size_t pairs() const noexcept { return pairs_; }
  [[nodiscard]] std::size_t far_pairs() const noexcept { return far_pairs_; }
  [[nodiscard]] std::size_t far_rows() const noexcept { return far_rows_; }
  //! @brief Rows that the schedule sends over the network, in either phase.
  [[nodiscard]] std::size_t crossing() const noexcept { return config_.schedule == "v1" ? far_pairs_ : far_rows_; }
  //! @brief Rows that a dispatch sends from one device to others, or a combine back to it: of the device with most.
  [[nodiscard]] std::size_t most_link_rows() const {
    auto const devices = static_cast<std::size_t>(config_.devices);
    std::vector<std::size_t> out(devices), in(devices);
    for (int d = 0; d < config_.world; ++d)
      for (auto const& source : received_[static_cast<std::size_t>(d)]) {
        auto const from = static_cast<std::size_t>(config_.device_of(source.rank)),
                   to = static_cast<std::size_t>(config_.device_of(d));
        if (from == to) continue;
        ++out[from];
        ++in[to];
      }
    std::size_t most = 0;
    for (std::size_t d = 0; d < devices; ++d) most = std::max({most, out[d], in[d]});
    return most;
  }
  [[nodiscard]] double dispatch_bytes() const noexcept {
    std::size_t const input = config_.quant == "fp8-carried" ? config_.received_bytes : config_.row_bytes();
    return static_cast<double>(tokens_sent_ * input + rows_ * config_.received_bytes);
  }
  [[nodiscard]] double combine_bytes() const noexcept {
    return static_cast<double>(rows_ * config_.combined_bytes +
                               static_cast<std::size_t>(config_.world) * tokens() * config_.row_bytes());
  }
  //! @brief The copy of every row into the registered buffer, read and written, that --external adds to combine.
  [[nodiscard]] double staging_bytes() const noexcept {
    return config_.external ? static_cast<double>(rows_ * (config_.row_bytes() + config_.combined_bytes)) : 0.0;
  }
  //! @brief What rows that cross between nodes add to either phase. InterNodeV1: they are written to where the network
  //!        takes them, read and written by it, and read where it brings them; InterNode: the network reads from where
  //!        the rows of combine lie, and writes to where those of dispatch are wanted.
  [[nodiscard]] double hop_bytes() const noexcept {
    return (config_.schedule == "v1" ? 4.0 : 2.0) * static_cast<double>(crossing() * config_.row_bytes());
  }
  [[nodiscard]] std::size_t tokens() const noexcept { return static_cast<std::size_t>(config_.tokens); }

 private:
  [[nodiscard]] std::size_t entry(int rank, int token) const noexcept {
    return (static_cast<std::size_t>(rank) * tokens() + static_cast<std::size_t>(token)) *
           static_cast<std::size_t>(config_.topk);
  }

  Config config_;
  mori_ep::workload::Routes routes_;
  std::vector<std::vector<mori_ep::routing::SourcePos>> received_;
  std::size_t rows_ = 0, tokens_sent_ = 0, pairs_ = 0, far_pairs_ = 0, far_rows_ = 0;
};

}  // namespace ep_bench
