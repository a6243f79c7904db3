// SPDX-License-Identifier: MIT
//! @file Measures an operator on GPUs, whatever its schedule and transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "element_types.hpp"
#include "gpu/gpu.hpp"
#include "gpu/launcher.hpp"
#include "mori_ep/mori_ep.hpp"
#include "quantisation.hpp"
#include "verify.hpp"

namespace ep_bench::gpu {

//! Longer than any launch takes, and soon over when ranks do not meet.
constexpr std::int64_t kTimeoutMs = 5000;

//! One rank's operator, its operands on its device, and the host's copies of what came out.
template <class Ep>
class Rank {
 public:
  using C = Coding<typename Ep::Wire>;
  using T = typename C::T;

  //! Collective over `comm`; the rank's device is current.
  Rank(const Problem& problem, const mori_ep::Communicator& comm)
      : problem_(problem), config_(problem.config()), rank_(comm.rank()), ep_(create(config_, comm)) {
    std::size_t const tokens = problem.tokens(), entries = tokens * static_cast<std::size_t>(config_.topk);
    x_ = DeviceBuffer<typename C::Input>(tokens * hidden());
    scales_ = DeviceBuffer<float>(tokens * C::carried_scales(hidden()));
    y_ = DeviceBuffer<T>(tokens * hidden());
    ids_ = DeviceBuffer<std::int32_t>(entries);
    weights_ = DeviceBuffer<float>(entries);
    copy(ids_.data(), problem.ids(rank_), ids_.bytes());
    copy(weights_.data(), problem.weights(rank_), weights_.bytes());
    auto const t = static_cast<std::int64_t>(tokens);
    inputs_.input = mori_ep::TensorView<const typename C::Input>(x_.data(), t, config_.hidden);
    if (C::kCarries)
      inputs_.scales =
          mori_ep::TensorView<const std::byte>(reinterpret_cast<const std::byte*>(scales_.data()), t,
                                               static_cast<std::int64_t>(C::carried_scales(hidden()) * sizeof(float)));
    inputs_.indices = mori_ep::TensorView<const std::int32_t>(ids_.data(), t, config_.topk);
    inputs_.weights = mori_ep::TensorView<const float>(weights_.data(), t, config_.topk);
    outputs_.output = mori_ep::TensorView<T>(y_.data(), t, config_.hidden);
    inputs_.launch = outputs_.launch = config_.launch;
    if (!config_.external) return;
    external_ = DeviceBuffer<T>(expected_rows() * hidden());
    if (external_.size() > 0)
      outputs_.input =
          mori_ep::TensorView<const T>(external_.data(), static_cast<std::int64_t>(expected_rows()), config_.hidden);
  }

  void dispatch(Stream stream) {
    auto got = ep_.dispatch(inputs_, stream);
    if (!got.ok() && got.status().code() == mori_ep::Errc::invalid_argument) throw UsageError(got.message());
    require(got.status());
    got_ = std::move(*got);
    sources_ = ep_.get_dispatch_src_token_pos(got_->ticket).data;
    if constexpr (mori_ep::quant::HasPlainCombine<typename Ep::Wire>)
      registered_ = ep_.get_registered_combine_input_buffer(got_->ticket).data;
  }
  void combine(Stream stream) { require(ep_.combine(std::move(got_->ticket), outputs_, stream)); }

  //! Before a verified dispatch: other rows than before, and nothing left where results will be.
  void prepare(const Verifier<T>& verifier) {
    Buffer<T> x(x_.size());
    verifier.fill_input(rank_, x.data());
    auto const sent = inputs_of(x.data());
    copy(x_.data(), sent.rows.data(), x_.bytes());
    copy(scales_.data(), sent.scales.data(), scales_.bytes());
    poison_received();
    poison(y_.data(), y_.bytes());
  }
  void poison_received() {
    auto const rows = static_cast<std::size_t>(ep_.capacity()), topk = static_cast<std::size_t>(config_.topk);
    poison(const_cast<typename C::Token*>(got_->rows.data), rows * hidden() * sizeof(typename C::Token));
    if (auto const& scales = got_->scales; scales.cols != 0)
      poison(const_cast<std::byte*>(scales.data), rows * static_cast<std::size_t>(scales.cols));
    poison(const_cast<std::int32_t*>(got_->indices.data), rows * topk * sizeof(std::int32_t));
    poison(const_cast<float*>(got_->weights.data), rows * topk * sizeof(float));
    poison(const_cast<std::int32_t*>(sources_), rows * sizeof(std::int32_t));
  }
  void poison_output() { poison(y_.data(), y_.bytes()); }

  [[nodiscard]] std::string check_dispatched(const Verifier<T>& verifier) {
    return verifier.check_dispatched(rank_, fetch());
  }
  //! What the last fetched rows are answered with; they stay, so every combine of the loop has the same result.
  void apply_experts(const Verifier<T>& verifier) {
    verifier.apply_experts(rank_, received_, host_rows_.data());  // in place: a row is read before it is written
    copy(config_.external ? external_.data() : registered_, host_rows_.data(),
         static_cast<std::size_t>(received_.count) * hidden() * sizeof(T));
  }
  [[nodiscard]] std::string check_outputs(const Verifier<T>& verifier) {
    Buffer<T> host(y_.size());
    copy(host.data(), y_.data(), y_.bytes());
    if (auto wrong = verifier.check_combined(rank_, host.data()); !wrong.empty()) return wrong;
    if constexpr (C::kCarries) {
      verifier.fill_input(rank_, host.data());
      auto const sent = inputs_of(host.data());
      std::vector<typename C::Input> now(x_.size());
      copy(now.data(), x_.data(), x_.bytes());
      return now == sent.rows ? "" : "input was changed: rank " + std::to_string(rank_);
    } else {
      copy(host.data(), x_.data(), x_.bytes());
      return verifier.check_input(rank_, host.data());
    }
  }
  [[nodiscard]] mori_ep::Status status() const { return ep_.status(); }
  //! @brief What this rank has put to each peer.
  [[nodiscard]] std::vector<mori_ep::fabric::Traffic> traffic() const {
    std::vector<mori_ep::fabric::Traffic> all;
    for (int peer = 0; peer < config_.world; ++peer) all.push_back(ep_.network_traffic(peer));
    return all;
  }

 private:
  static Ep create(const Config& config, const mori_ep::Communicator& comm) {
    auto wanted = operator_config(config);
    wanted.timeout_ms = kTimeoutMs;
    auto ep = Ep::create(comm, wanted);
    if (ep.ok()) return std::move(*ep);
    (void)MORI_EP_RT(GetLastError)();
    if (ep.status().code() == mori_ep::Errc::invalid_argument || ep.status().code() == mori_ep::Errc::invalid_config)
      throw UsageError(ep.message());
    throw std::runtime_error(ep.message());
  }

  struct Inputs {
    std::vector<typename C::Input> rows;
    std::vector<float> scales;
  };
  [[nodiscard]] Inputs inputs_of(const T* x) const {
    Inputs out{std::vector<typename C::Input>(x_.size()), std::vector<float>(scales_.size())};
    for (std::size_t t = 0; t < problem_.tokens(); ++t)
      C::to_input(x + t * hidden(), t, hidden(), out.rows.data() + t * hidden(),
                  out.scales.data() + t * C::carried_scales(hidden()));
    return out;
  }
  const Received<T>& fetch() {
    std::int32_t count = 0;
    copy(&count, got_->recv_count, sizeof(count));
    // More than expected is the verifier's to report, from the count alone.
    auto const rows = std::min(expected_rows(), static_cast<std::size_t>(std::max(count, 0)));
    auto const topk = static_cast<std::size_t>(config_.topk);
    if (host_rows_.size() == 0) host_rows_ = Buffer<T>(expected_rows() * hidden());
    host_ids_.resize(rows * topk);
    host_weights_.resize(rows * topk);
    host_sources_.resize(rows);
    host_expert_count_.resize(static_cast<std::size_t>(config_.experts_per_rank()));
    if constexpr (C::kPlainDispatch) {
      copy(host_rows_.data(), got_->rows.data, rows * hidden() * sizeof(T));
    } else {
      auto const scales = static_cast<std::size_t>(got_->scales.cols);
      std::vector<typename C::Token> codes(rows * hidden());
      std::vector<std::byte> row_scales(rows * scales);
      copy(codes.data(), got_->rows.data, codes.size() * sizeof(typename C::Token));
      copy(row_scales.data(), got_->scales.data, row_scales.size());
      for (std::size_t i = 0; i < rows; ++i)
        C::to_elements(codes.data() + i * hidden(), row_scales.data() + i * scales, hidden(),
                       host_rows_.data() + i * hidden());
    }
    copy(host_ids_.data(), got_->indices.data, host_ids_.size() * sizeof(std::int32_t));
    copy(host_weights_.data(), got_->weights.data, host_weights_.size() * sizeof(float));
    copy(host_sources_.data(), sources_, rows * sizeof(std::int32_t));
    copy(host_expert_count_.data(), got_->expert_count, host_expert_count_.size() * sizeof(std::int32_t));
    received_ = {.count = count,
                 .rows = host_rows_.data(),
                 .ids = host_ids_.data(),
                 .weights = host_weights_.data(),
                 .sources = host_sources_.data(),
                 .expert_count = host_expert_count_.data()};
    return received_;
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden); }
  [[nodiscard]] std::size_t expected_rows() const { return problem_.received(rank_).size(); }

  const Problem& problem_;
  const Config& config_;
  int rank_;
  Ep ep_;
  DeviceBuffer<typename C::Input> x_;
  DeviceBuffer<float> scales_;  // of codes that are the caller's
  DeviceBuffer<T> y_, external_;
  DeviceBuffer<std::int32_t> ids_;
  DeviceBuffer<float> weights_;
  typename Ep::DispatchInputs inputs_;
  typename Ep::CombineInputs outputs_;
  std::optional<typename Ep::Dispatched> got_;
  const std::int32_t* sources_ = nullptr;
  T* registered_ = nullptr;
  Buffer<T> host_rows_;
  std::vector<std::int32_t> host_ids_, host_sources_, host_expert_count_;
  std::vector<float> host_weights_;
  Received<T> received_;
};

//! All ranks, and one thread that launches for them.
template <class Ep>
class Session {
 public:
  using C = Coding<typename Ep::Wire>;
  using T = typename C::T;
  explicit Session(const Problem& problem)
      : problem_(problem),
        config_(problem.config()),
        launcher_(config_),
        ranks_(static_cast<std::size_t>(config_.world)) {
    mori_ep::LocalWorld(config_.world, config_.gpu_per_node())
        .run([&](mori_ep::Communicator& comm) -> mori_ep::Status {
          set_device(launcher_.device_of(comm.rank()));
          ranks_[static_cast<std::size_t>(comm.rank())] = std::make_unique<Rank<Ep>>(problem, comm);
          return {};
        })
        .or_throw();
    Launcher::Enqueue const dispatch = [this](int r, Stream s) { rank(r).dispatch(s); };
    Launcher::Enqueue const combine = [this](int r, Stream s) { rank(r).combine(s); };
    Launcher::Enqueue const pair = [this](int r, Stream s) {
      rank(r).dispatch(s);
      rank(r).combine(s);
    };
    // Captured also where it is not replayed: the graph says with what geometry the operator launches.
    dispatch_ = {dispatch, launcher_.capture(dispatch)};
    geometry_ = dispatch_.graphs.front().geometry();
    combine_ = {combine, launcher_.capture(combine)};
    pair_ = {pair, launcher_.capture(pair)};
    auto const empty = Launcher::empty_kernels(geometry_);
    floor_ = {empty, launcher_.capture(empty)};
    if (!config_.graph)
      for (auto* phase : {&dispatch_, &combine_, &pair_, &floor_}) phase->graphs.clear();
  }

  Outcome measure(const Progress& progress) {
    Outcome out;
    // Other rows the second time: what a dispatch left behind in the first cannot pass for what the last one brought.
    Verifier<T> const before(problem_, config_.seed, C::dispatch_error, C::combine_error),
        after(problem_, config_.seed + 1, C::dispatch_error, C::combine_error);
    std::vector<double> dispatch, combine, pair, floor;
    out.launch = geometry_;
    out.check = verify(before);
    for (int i = -config_.warmup; out.check.empty() && i < config_.iterations; ++i) {
      progress(static_cast<double>(i + config_.warmup) / (config_.warmup + config_.iterations));
      auto const sample = [&](std::vector<double>& samples, const Launcher::Phase& phase) {
        double const us = launcher_.time_us(phase);
        if (i >= 0) samples.push_back(us);
      };
      sample(floor, floor_);
      sample(dispatch, dispatch_);
      sample(combine, combine_);
      sample(pair, pair_);
    }
    if (out.check.empty()) out.check = check_last(before);
    if (out.check.empty() && !config_.near_only()) out.wire = count();
    if (out.check.empty()) out.check = verify(after);
    if (!out.check.empty()) return out;
    out.check = "ok";
    std::vector<double> const unknown(ranks_.size(), std::numeric_limits<double>::quiet_NaN());
    double const d = problem_.dispatch_bytes(), c = problem_.combine_bytes() + problem_.staging_bytes();
    out.phases = {{dispatch, unknown, d}, {combine, unknown, c}, {pair, unknown, d + c}};
    out.floor_us = std::move(floor);
    return out;
  }

 private:
  //! One dispatch, the experts, one combine, all of it checked.
  std::string verify(const Verifier<T>& verifier) {
    if (auto wrong = on_all([&](Rank<Ep>& r) { return r.prepare(verifier), std::string(); }); !wrong.empty())
      return wrong;
    launcher_.run(dispatch_);
    auto wrong = on_all([&](Rank<Ep>& r) { return r.check_dispatched(verifier); });
    if (!wrong.empty()) return wrong;
    wrong = on_all([&](Rank<Ep>& r) { return r.apply_experts(verifier), std::string(); });
    if (!wrong.empty()) return wrong;
    launcher_.run(combine_);
    return on_all([&](Rank<Ep>& r) { return r.check_outputs(verifier); });
  }
  //! The pair once more, untimed, so that results left from an earlier iteration cannot pass.
  std::string check_last(const Verifier<T>& verifier) {
    auto wrong = on_all([&](Rank<Ep>& r) { return r.poison_received(), r.poison_output(), std::string(); });
    if (!wrong.empty()) return wrong;
    launcher_.run(pair_);
    wrong = on_all([&](Rank<Ep>& r) { return r.check_outputs(verifier); });
    return wrong.empty() ? on_all([&](Rank<Ep>& r) { return r.check_dispatched(verifier); }) : wrong;
  }

  //! One more of each phase, untimed, to see what goes over the network. A phase ends when what it put has arrived.
  Wire count() {
    auto const bytes_put = [this] {
      double bytes = 0;
      for (auto const& rank : ranks_)
        for (auto const& t : rank->traffic()) bytes += static_cast<double>(t.bytes);
      return bytes;
    };
    double const before = bytes_put();
    launcher_.run(dispatch_);
    double const between = bytes_put();
    launcher_.run(combine_);
    Wire wire{.dispatch_bytes = between - before, .combine_bytes = bytes_put() - between, .traffic = {}};
    for (auto const& rank : ranks_)
      for (auto const& t : rank->traffic()) wire.traffic.push_back(t);
    return wire;
  }

  //! Calls `f` for every rank, each in a thread of its own with the rank's device current; the first complaint.
  template <class F>
  std::string on_all(F&& f) {
    std::vector<std::string> complaints(ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          set_device(launcher_.device_of(static_cast<int>(r)));
          if (auto s = ranks_[r]->status(); !s.ok())
            complaints[r] = s.message();
          else
            complaints[r] = f(*ranks_[r]);
          finish();
        } catch (const std::exception& error) {
          complaints[r] = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    for (auto& complaint : complaints)
      if (!complaint.empty()) return complaint;
    return {};
  }
  Rank<Ep>& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }

  const Problem& problem_;
  const Config& config_;
  Launcher launcher_;
  std::vector<std::unique_ptr<Rank<Ep>>> ranks_;
  mori_ep::launch::LaunchParams geometry_;
  Launcher::Phase dispatch_, combine_, pair_, floor_;
};

//! @brief Verifies, times, verifies again.
template <class Ep>
Outcome run(const Problem& problem, const Progress& progress) {
  try {
    return Session<Ep>(problem).measure(progress);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    Outcome out;
    out.check = error.what();
    return out;
  }
}

}  // namespace ep_bench::gpu
