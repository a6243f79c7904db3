// SPDX-License-Identifier: MIT
//! @file Plays a Plan with an operator: every rank a thread, nothing synchronised before the end, then compared.
#pragma once

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/guarded.hpp"
#include "support/operators.hpp"
#include "support/oracle.hpp"
#include "support/process_world.hpp"

namespace mori_ep::test {

//! @brief What a rank returns for a received row: the sum over its experts in the row of a different line each, so that
//!        a row at a wrong rank, or with wrong ids, cannot give a right sum.
inline void expert_row(Format format, int experts_per_rank, int rank, const std::int64_t* ids, int topk,
                       const std::byte* x, int hidden, std::byte* out) {
  double slope = 0, shift = 0;
  for (int k = 0; k < topk; ++k) {
    bool first = true;
    for (int j = 0; j < k; ++j) first = first && ids[j] != ids[k];
    if (!first || ids[k] < std::int64_t{rank} * experts_per_rank || ids[k] >= std::int64_t{rank + 1} * experts_per_rank)
      continue;
    std::uint64_t const h = mix(static_cast<std::uint64_t>(ids[k]));
    slope += 0.25 + static_cast<double>(h % 64) / 128;
    shift += static_cast<double>((h >> 8) % 64) / 32 - 1;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(hidden); ++i)
    oracle::store(format, out, i,
                  oracle::encode(format, oracle::decode(format, oracle::load(format, x, i)) * slope + shift));
}

//! @brief Weight k that `rank` returns for a row; of full precision, so that the order of sums shows.
inline float returned_weight(int rank, int source, int token, int k) {
  auto const h = mix(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(source),
                     static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(k));
  return static_cast<float>(static_cast<double>(h % 16777213) * 0x1p-20 - 7.3);
}

template <class T>
constexpr Format format_of() noexcept {
  return std::is_same_v<T, bf16> ? Format::bf16 : std::is_same_v<T, fp16> ? Format::fp16 : Format::fp32;
}

//! @brief The machine and the reduction of an operator.
template <class Operator>
struct OperatorTraits;
template <class Transport, class Schedule, class Quant, class ExecPolicy, class Reduce, class Index>
struct OperatorTraits<EpDispatchCombine<Transport, Schedule, Quant, ExecPolicy, Reduce, Index>> {
  using Exec = ExecPolicy;
  static constexpr comm::Place kPlace = Transport::kPlace;
  static constexpr bool kWeighted = Reduce::kWeighted;
  static constexpr bool kRoundsSums = std::is_same_v<Schedule, schedule::InterNodeV1>;
};

//! @brief All ranks' memory of a plan and the steps of one rank. Outlives the operators that it was played with.
template <class Operator>
class Player {
 public:
  using Token = typename Operator::Token;
  using Index = typename Operator::IndexType;
  using Exec = typename OperatorTraits<Operator>::Exec;
  using Stream = TestStream<Exec>;
  static constexpr bool kWeighted = OperatorTraits<Operator>::kWeighted;

  explicit Player(const Plan& plan) : plan_(plan) {
    const EpDispatchCombineConfig& c = config();
    if (plan_.steps.empty())
      for (int i = 0; i < static_cast<int>(plan_.calls.size()); ++i) {
        plan_.steps.push_back({Step::dispatch, i});
        plan_.steps.push_back({Step::combine, i});
      }
    for (const Call& call : plan_.calls) {
      oracle::Problem p{.world = plan_.setup.world,
                        .hidden = c.hidden_dim,
                        .topk = c.num_experts_per_token,
                        .experts_per_rank = c.num_experts_per_rank,
                        .format = format_of<Token>(),
                        .scale_bytes = c.scale_bytes(),
                        .capacity = std::int64_t{plan_.setup.world} * c.max_num_inp_token_per_rank,
                        .ranks = call.tokens};
      if (c.max_total_recv_tokens > 0 && c.max_total_recv_tokens < p.capacity) p.capacity = c.max_total_recv_tokens;
      expected_.push_back(oracle::dispatch(p));
      problems_.push_back(std::move(p));
    }
    for (int rank = 0; rank < plan_.setup.world; ++rank) {
      slots_.emplace_back(plan_.calls.size());
      for (std::size_t i = 0; i < plan_.calls.size(); ++i) prepare(slots_.back()[i], rank, i);
    }
    if (plan_.setup.own_memory || raw_arenas()) {
      auto const footprint = Operator::footprint(c, plan_.setup.world, plan_.setup.gpu_per_node);
      for (int rank = 0; footprint.ok() && rank < plan_.setup.world; ++rank) {
        if (!ranks_are_processes()) {
          settle<Exec>(rank, plan_.setup.world);
          arenas_.emplace_back(footprint->bytes, OperatorTraits<Operator>::kPlace);
        } else if constexpr (std::is_same_v<Exec, exec::Host>) {
          shareable_arenas_.emplace_back(footprint->bytes);
        }
      }
    }
  }

  [[nodiscard]] comm::ArenaMemory arena(int rank) const {
    auto const r = static_cast<std::size_t>(rank);
    if (!shareable_arenas_.empty()) return shareable_arenas_[r].memory();
    if (arenas_.empty()) return {};
    return {.bytes = {arenas_[r].data(), arenas_[r].bytes()}};
  }

  //! @brief Enqueues this rank's steps. `streams` has `setup.streams` of them.
  Status perform(Operator& op, int rank, Stream* streams) {
    Rng jitter(
        mix(static_cast<std::uint64_t>(rank), plan_.calls.size(), static_cast<std::uint64_t>(config().hidden_dim)));
    for (Step const step : plan_.steps) {
      Stream& stream = streams[step.call % plan_.setup.streams];
      if (plan_.setup.jitter_us > 0) sleep_on(stream, jitter.in(0, plan_.setup.jitter_us));
      if (Status s = perform(op, rank, step, stream); !s.ok()) return s;
    }
    return {};
  }

  //! @brief Compares everything that was played. Call when all ranks are done.
  [[nodiscard]] std::string verify() const {
    for (std::size_t i = 0; i < plan_.calls.size(); ++i) {
      bool dispatched = false, combined = false, scribbled = false;
      for (Step const s : plan_.steps) {
        if (s.call != static_cast<int>(i)) continue;
        dispatched |= s.kind == Step::dispatch || s.kind == Step::recv;
        combined |= s.kind == Step::combine || s.kind == Step::combine_recv;
        scribbled |= s.kind == Step::scribble;
      }
      for (int rank = 0; rank < plan_.setup.world; ++rank) {
        std::string wrong = verify_buffers(i, rank, scribbled);
        if (wrong.empty() && dispatched) wrong = verify_dispatch(i, rank);
        if (wrong.empty() && !combined && !slot(rank, i).y.untouched()) wrong = "output written without a combine";
        if (!wrong.empty()) return at(i, rank) + wrong;
      }
      if (combined)
        if (std::string wrong = verify_combine(i); !wrong.empty()) return wrong;
    }
    for (std::size_t rank = 0; rank < arenas_.size(); ++rank)
      if (!arenas_[rank].intact()) return "rank " + std::to_string(rank) + ": canary of the arena";
    for (std::size_t rank = 0; rank < shareable_arenas_.size(); ++rank)
      if (!shareable_arenas_[rank].intact()) return "rank " + std::to_string(rank) + ": canary of the shared arena";
    return {};
  }

  //! @brief A hash over everything that `rank` received and got back in call `i`.
  [[nodiscard]] std::uint64_t hash(int rank, std::size_t i) const {
    std::uint64_t h = 0;
    auto const add = [&h](const void* data, std::size_t bytes) {
      for (std::size_t b = 0; b < bytes; ++b) h = (h ^ static_cast<const std::uint8_t*>(data)[b]) * 0x100000001b3ull;
    };
    const Slot& s = slot(rank, i);
    std::size_t const rows = recv_rows(rank, i);
    add(s.seen.rows.data(), rows * row_bytes());
    add(s.seen.ids.data(), rows * topk() * sizeof(Index));
    add(s.seen.weights.data(), s.seen.weights.size() * sizeof(float));
    add(s.seen.scales.data(), s.seen.scales.size());
    add(s.seen.src_pos.data(), rows * sizeof(std::int32_t));
    add(s.seen.expert_count.data(), s.seen.expert_count.size() * sizeof(std::int32_t));
    add(s.y.data(), s.y.bytes());
    add(s.weights_out.data(), s.weights_out.bytes());
    return h;
  }

 private:
  //! What a dispatch delivered, copied on the stream before combine may free the buffers. As many rows as are expected;
  //! all that there is room for where nothing was before (`whole`).
  struct Seen {
    Vector<Token> rows;
    Vector<Index> ids;
    Vector<float> weights;
    Vector<std::byte> scales;
    Vector<std::int32_t> src_pos, expert_count;
    Vector<routing::RecvTotals> totals;
    bool whole = false;
  };
  //! What experts read and write, copied on the stream just before the combine.
  struct Work {
    Vector<Token> rows, results;
    Vector<Index> ids;
    Vector<std::int32_t> src_pos;
  };
  struct Slot {
    Guarded x, ids, weights, scales;         // inputs of dispatch
    Guarded in, in_weights, y, weights_out;  // inputs and outputs of combine
    std::vector<Index> packed_ids;
    std::optional<typename Operator::Dispatched> got;
    std::optional<typename Operator::KeptRouting> kept;
    TensorView<const std::int32_t> src_pos;
    Seen seen;
    Work work;
  };

  [[nodiscard]] const EpDispatchCombineConfig& config() const { return plan_.setup.config; }
  [[nodiscard]] Slot& slot(int rank, std::size_t i) { return slots_[static_cast<std::size_t>(rank)][i]; }
  [[nodiscard]] const Slot& slot(int rank, std::size_t i) const { return slots_[static_cast<std::size_t>(rank)][i]; }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config().hidden_dim); }
  [[nodiscard]] std::size_t topk() const { return static_cast<std::size_t>(config().num_experts_per_token); }
  [[nodiscard]] std::size_t row_bytes() const { return hidden() * sizeof(Token); }
  [[nodiscard]] std::size_t recv_rows(int rank, std::size_t i) const {
    return expected_[i][static_cast<std::size_t>(rank)].rows.size();
  }
  [[nodiscard]] static std::string at(std::size_t call, int rank) {
    return "call " + std::to_string(call) + " rank " + std::to_string(rank) + ": ";
  }
  //! Leading dimension in elements of rows that must start at multiples of 16 bytes.
  [[nodiscard]] std::size_t row_ld(const Call& call) const {
    return hidden() + static_cast<std::size_t>(call.pad) * 16 / sizeof(Token);
  }
  [[nodiscard]] std::size_t small_ld(const Call& call) const { return topk() + static_cast<std::size_t>(call.pad); }

  void prepare(Slot& s, int rank, std::size_t i) {
    const Call& call = plan_.calls[i];
    const oracle::Tokens& tokens = call.tokens[static_cast<std::size_t>(rank)];
    auto const n = static_cast<std::size_t>(tokens.count);
    std::size_t const stride = row_ld(call) * sizeof(Token), k = topk();
    s.x = Guarded(n, row_bytes(), stride);
    s.x.put(tokens.x.data());
    s.packed_ids.assign(tokens.ids.begin(), tokens.ids.end());
    for (std::size_t j = 0; j < s.packed_ids.size(); ++j) s.packed_ids[j] = static_cast<Index>(tokens.ids[j]);
    s.ids = Guarded(n, k * sizeof(Index), small_ld(call) * sizeof(Index));
    s.ids.put(s.packed_ids.data());
    s.weights = Guarded(n, k * sizeof(float), small_ld(call) * sizeof(float));
    s.weights.put(tokens.weights.data());
    s.scales = Guarded(n, config().scale_bytes(), config().scale_bytes() + static_cast<std::size_t>(call.pad));
    s.scales.put(tokens.scales.data());
    std::size_t const rows = recv_rows(rank, i) + static_cast<std::size_t>(call.extra_rows);
    if (!call.zero_copy) s.in = Guarded(rows, row_bytes(), stride);
    if (call.return_weights) {
      s.in_weights = Guarded(rows, k * sizeof(float), small_ld(call) * sizeof(float));
      s.weights_out = Guarded(n, k * sizeof(float), small_ld(call) * sizeof(float));
    }
    s.y = Guarded(n, row_bytes(), stride);

    std::size_t const received = recv_rows(rank, i);
    s.work = {Vector<Token>(received * hidden()), Vector<Token>(call.zero_copy ? received * hidden() : 0),
              Vector<Index>(received * k), Vector<std::int32_t>(received)};
    s.seen.whole = plan_.setup.own_memory && !ranks_are_processes() && !raw_arenas() &&
                   i < static_cast<std::size_t>(config().num_buffer_sets) && plan_.steps[0].call == 0;
    std::size_t const seen = s.seen.whole ? static_cast<std::size_t>(problems_[i].capacity) : received;
    s.seen.rows.resize(seen * hidden());
    s.seen.ids.resize(seen * k);
    if (call.weights || call.replay_of >= 0) s.seen.weights.resize(received * k);
    s.seen.scales.resize(received * config().scale_bytes());
    s.seen.src_pos.resize(seen);
    s.seen.expert_count.resize(static_cast<std::size_t>(config().num_experts_per_rank));
    s.seen.totals.resize(1);
  }

  template <class T>
  static TensorView<T> view(const Guarded& memory, std::size_t cols, std::size_t ld) {
    return {reinterpret_cast<T*>(memory.data()), static_cast<std::int64_t>(memory.rows()),
            static_cast<std::int64_t>(cols), static_cast<std::int64_t>(ld)};
  }
  static launch::LaunchParams launch_of(const Call& call, int rank, int salt) {
    if (call.launch_of_rank >= 0 && call.launch_of_rank != rank) return {};
    if (!call.mixed_launch) return {call.blocks, call.warps};
    salt += rank;
    return {1 + (call.blocks + 3 * salt) % 7, 1 + (call.warps + salt) % 3};
  }
  static void sleep_on(Stream& stream, int us) {
    if (us > 0) stream.submit([us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
  }

  Status perform(Operator& op, int rank, Step step, Stream& stream) {
    auto const i = static_cast<std::size_t>(step.call);
    const Call& call = plan_.calls[i];
    Slot& s = slot(rank, i);
    auto const out_of_plan = [&](const char* what) {
      return Status{Error{.code = Errc::invalid_argument, .rank = rank, .field = what, .value = step.call}};
    };
    switch (step.kind) {
      case Step::dispatch:
      case Step::send: {
        if (!call.delay_us.empty()) sleep_on(stream, call.delay_us[static_cast<std::size_t>(rank)]);
        typename Operator::DispatchInputs in{.input = view<const Token>(s.x, hidden(), row_ld(call)),
                                             .launch = launch_of(call, rank, 0)};
        if (call.replay_of >= 0) {
          auto& kept = slot(rank, static_cast<std::size_t>(call.replay_of)).kept;
          if (!kept) return out_of_plan("test bug: replay without keep");
          in.routing = &*kept;
        } else {
          in.indices = view<const Index>(s.ids, topk(), small_ld(call));
        }
        if (call.weights) in.weights = view<const float>(s.weights, topk(), small_ld(call));
        if (config().scale_bytes() != 0)
          in.scales = view<const std::byte>(s.scales, config().scale_bytes(),
                                            config().scale_bytes() + static_cast<std::size_t>(call.pad));
        auto got = step.kind == Step::dispatch ? op.dispatch(in, stream) : op.dispatch_send(in, stream);
        if (!got.ok()) return got.status();
        s.got = std::move(*got);
        s.src_pos = op.get_dispatch_src_token_pos(s.got->ticket);
        if (s.got->rows.rows != op.capacity() || s.got->indices.rows != op.capacity() ||
            s.src_pos.rows != op.capacity())
          return out_of_plan("views of other than R rows");
        if (step.kind == Step::dispatch) look(rank, i, stream);
        return {};
      }
      case Step::recv:
        if (Status r = op.dispatch_recv(s.got->ticket, stream); !r.ok()) return r;
        look(rank, i, stream);
        return {};
      case Step::combine:
      case Step::combine_send: {
        copy_all(stream, s.work.rows, s.got->rows.data);
        copy_all(stream, s.work.ids, s.got->indices.data);
        copy_all(stream, s.work.src_pos, s.src_pos.data);
        stream.submit([this, rank, i] { run_experts(rank, i); });
        auto const registered = op.get_registered_combine_input_buffer(s.got->ticket);  // empty after a fault
        if (call.zero_copy && !registered.empty())
          stream.copy(registered.data, s.work.results.data(), s.work.results.size() * sizeof(Token));
        if (plan_.setup.jitter_us > 0) sleep_on(stream, rank * 7919 % plan_.setup.jitter_us);
        if (step.kind == Step::combine)
          return op.combine(std::move(s.got->ticket), combine_inputs(op, call, s, rank), stream);
        return op.combine_send(s.got->ticket, combine_inputs(op, call, s, rank), stream);
      }
      case Step::combine_recv:
        return op.combine_recv(std::move(s.got->ticket), combine_inputs(op, call, s, rank), stream);
      case Step::drop:
        s.got.reset();
        return {};
      case Step::keep: {
        auto kept = op.keep(s.got->ticket, stream);
        if (!kept.ok()) return kept.status();
        s.kept = std::move(*kept);
        return {};
      }
      case Step::scribble:
        stream.submit([&s] {
          std::memset(s.ids.data(), 0, s.ids.bytes());
          std::memset(s.weights.data(), 0, s.weights.bytes());
        });
        return {};
    }
    return {};
  }

  typename Operator::CombineInputs combine_inputs(Operator& op, const Call& call, Slot& s, int rank) const {
    typename Operator::CombineInputs in{.output = view<Token>(s.y, hidden(), row_ld(call)),
                                        .launch = launch_of(call, rank, 5)};
    if (!call.zero_copy)
      in.input = view<const Token>(s.in, hidden(), row_ld(call));
    else if (call.pad != 0)  // the registered buffer may also be named
      in.input = op.get_registered_combine_input_buffer(s.got->ticket);
    if (call.return_weights) {
      in.weights = view<const float>(s.in_weights, topk(), small_ld(call));
      in.weights_output = view<float>(s.weights_out, topk(), small_ld(call));
    }
    return in;
  }

  template <class T>
  static void copy_all(Stream& stream, Vector<T>& to, const T* from) {
    stream.copy(to.data(), from, to.size() * sizeof(T));
  }
  //! On the stream: copies what arrived.
  void look(int rank, std::size_t i, Stream& stream) {
    Slot& s = slot(rank, i);
    // RecvTotals starts with the count that the dispatch's result points to.
    copy_all(stream, s.seen.totals, reinterpret_cast<const routing::RecvTotals*>(s.got->recv_count));
    copy_all(stream, s.seen.rows, s.got->rows.data);
    copy_all(stream, s.seen.ids, s.got->indices.data);
    copy_all(stream, s.seen.weights, s.got->weights.data);
    copy_all(stream, s.seen.scales, s.got->scales.data);
    copy_all(stream, s.seen.src_pos, s.src_pos.data);
    copy_all(stream, s.seen.expert_count, s.got->expert_count);
  }

  //! On the stream: what the engine would do between dispatch and combine. Reads only what the dispatch delivered.
  void run_experts(int rank, std::size_t i) {
    Slot& s = slot(rank, i);
    const Call& call = plan_.calls[i];
    auto const n = std::min(static_cast<std::size_t>(s.seen.totals[0].recv_count), recv_rows(rank, i));
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<std::int64_t> ids(s.work.ids.data() + r * topk(), s.work.ids.data() + (r + 1) * topk());
      expert_row(format_of<Token>(), config().num_experts_per_rank, rank, ids.data(), static_cast<int>(topk()),
                 reinterpret_cast<const std::byte*>(s.work.rows.data() + r * hidden()), config().hidden_dim,
                 call.zero_copy ? reinterpret_cast<std::byte*>(s.work.results.data() + r * hidden()) : s.in.row(r));
      if (call.return_weights)
        for (std::size_t k = 0; k < topk(); ++k) {
          int const pos = s.work.src_pos[r], m = config().max_num_inp_token_per_rank;
          reinterpret_cast<float*>(s.in_weights.row(r))[k] =
              returned_weight(rank, pos / m, pos % m, static_cast<int>(k));
        }
    }
  }

  [[nodiscard]] std::string verify_buffers(std::size_t i, int rank, bool scribbled) const {
    const Slot& s = slot(rank, i);
    const oracle::Tokens& tokens = plan_.calls[i].tokens[static_cast<std::size_t>(rank)];
    if (!s.x.holds(tokens.x.data())) return "input changed";
    if (!scribbled && !s.ids.holds(s.packed_ids.data())) return "indices changed";
    if (!scribbled && !s.weights.holds(tokens.weights.data())) return "weights changed";
    if (!s.scales.holds(tokens.scales.data())) return "scales changed";
    if (!s.x.intact() || (!scribbled && (!s.ids.intact() || !s.weights.intact())) || !s.scales.intact())
      return "canary of a dispatch input";
    if (!s.in.intact() || !s.in_weights.intact()) return "canary of a combine input";
    if (!s.y.intact()) return "canary of the output";
    if (!s.weights_out.intact()) return "canary of the weights output";
    return {};
  }

  [[nodiscard]] std::string verify_dispatch(std::size_t i, int rank) const {
    const oracle::Problem& p = problems_[i];
    const oracle::Received& want = expected_[i][static_cast<std::size_t>(rank)];
    const Seen& seen = slot(rank, i).seen;
    const routing::RecvTotals& totals = seen.totals[0];
    auto const differs = [](const char* what, std::int64_t got, std::int64_t expected) {
      return std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(expected);
    };
    if (totals.total != want.total) return differs("total", totals.total, want.total);
    if (totals.dropped != want.dropped) return differs("dropped", totals.dropped, want.dropped);
    if (totals.invalid_ids != want.invalid_ids) return differs("invalid_ids", totals.invalid_ids, want.invalid_ids);
    if (totals.recv_count != static_cast<std::int64_t>(want.rows.size()))
      return differs("recv_count", totals.recv_count, static_cast<std::int64_t>(want.rows.size()));
    for (std::size_t e = 0; e < want.expert_count.size(); ++e)
      if (seen.expert_count[e] != want.expert_count[e])
        return "local expert " + std::to_string(e) + ": " +
               differs("count", seen.expert_count[e], want.expert_count[e]);
    if (seen.whole && !untouched_past(want.rows.size(), seen)) return "rows past recv_count were written";
    for (std::size_t r = 0; r < want.rows.size(); ++r) {
      oracle::Row const from = want.rows[r];
      const oracle::Tokens& source = p.ranks[static_cast<std::size_t>(from.source)];
      auto const t = static_cast<std::size_t>(from.token);
      auto const where = [&](const char* what) {
        return std::string(what) + " of row " + std::to_string(r) + " (rank " + std::to_string(from.source) +
               " token " + std::to_string(from.token) + ")";
      };
      if (seen.src_pos[r] != from.source * config().max_num_inp_token_per_rank + from.token)
        return differs(where("position").c_str(), seen.src_pos[r],
                       from.source * config().max_num_inp_token_per_rank + from.token);
      if (std::memcmp(seen.rows.data() + r * hidden(), source.x.data() + t * row_bytes(), row_bytes()) != 0)
        return where("payload");
      const Index* ids = slot(from.source, i).packed_ids.data() + t * topk();
      if (std::memcmp(seen.ids.data() + r * topk(), ids, topk() * sizeof(Index)) != 0) return where("ids");
      if (!seen.weights.empty() && source.weights.size() != 0 &&
          std::memcmp(seen.weights.data() + r * topk(), source.weights.data() + t * topk(), topk() * sizeof(float)) !=
              0)
        return where("weights");
      if (p.scale_bytes != 0 && std::memcmp(seen.scales.data() + r * p.scale_bytes,
                                            source.scales.data() + t * p.scale_bytes, p.scale_bytes) != 0)
        return where("scales");
    }
    return {};
  }

  [[nodiscard]] bool untouched_past(std::size_t rows, const Seen& seen) const {
    auto const blank = [rows](const auto& memory, std::size_t width) {
      return Guarded::all(reinterpret_cast<const std::byte*>(memory.data() + rows * width),
                          (memory.size() - rows * width) * sizeof(memory[0]), Guarded::kFill);
    };
    return blank(seen.rows, hidden()) && blank(seen.ids, topk()) && blank(seen.src_pos, 1);
  }

  [[nodiscard]] std::string verify_combine(std::size_t i) const {
    const oracle::Problem& p = problems_[i];
    const Call& call = plan_.calls[i];
    oracle::RowIndex const index(p, expected_[i]);
    std::vector<std::vector<std::byte>> rows(expected_[i].size());
    std::vector<std::vector<float>> weights(call.return_weights ? expected_[i].size() : 0);
    for (int rank = 0; rank < p.world; ++rank) {
      auto const& received = expected_[i][static_cast<std::size_t>(rank)].rows;
      auto& out = rows[static_cast<std::size_t>(rank)];
      out.resize(received.size() * row_bytes());
      for (std::size_t r = 0; r < received.size(); ++r) {
        oracle::Row const from = received[r];
        expert_row(p.format, p.experts_per_rank, rank, oracle::ids_of(p, from.source, from.token), p.topk,
                   p.ranks[static_cast<std::size_t>(from.source)].x.data() +
                       static_cast<std::size_t>(from.token) * row_bytes(),
                   p.hidden, out.data() + r * row_bytes());
        if (call.return_weights)
          for (int k = 0; k < p.topk; ++k)
            weights[static_cast<std::size_t>(rank)].push_back(returned_weight(rank, from.source, from.token, k));
      }
    }
    int const group = config().reduce_gpu_per_node > 0 ? config().reduce_gpu_per_node
                      : plan_.setup.gpu_per_node > 0   ? plan_.setup.gpu_per_node
                                                       : p.world;
    for (int rank = 0; rank < p.world; ++rank) {
      oracle::Combined const want =
          oracle::combine(p, index, rows, weights, rank, group, kWeighted, OperatorTraits<Operator>::kRoundsSums);
      const Slot& s = slot(rank, i);
      for (std::size_t t = 0; t < s.y.rows(); ++t) {
        for (std::size_t h = 0; h < hidden(); ++h) {
          std::uint32_t const got = oracle::load(p.format, s.y.row(t), h),
                              bits = oracle::load(p.format, want.y.data() + t * row_bytes(), h);
          double const value = oracle::decode(p.format, got), exact = want.exact[t * hidden() + h];
          if (got != bits || !(std::fabs(value - exact) <= want.bound[t * hidden() + h]))
            return at(i, rank) + "sum of token " + std::to_string(t) + " element " + std::to_string(h) + " is " +
                   std::to_string(value) + " (" + std::to_string(got) + "), expected " +
                   std::to_string(oracle::decode(p.format, bits)) + " (" + std::to_string(bits) + "), exact " +
                   std::to_string(exact);
        }
        if (call.return_weights &&
            std::memcmp(s.weights_out.row(t), want.weights.data() + t * topk(), topk() * sizeof(float)) != 0)
          return at(i, rank) + "returned weights of token " + std::to_string(t);
      }
    }
    return {};
  }

  Plan plan_;
  std::vector<oracle::Problem> problems_;
  std::vector<std::vector<oracle::Received>> expected_;  // [call][rank]
  std::vector<std::vector<Slot>> slots_;                 // [rank][call]
  std::vector<GuardedArena<Exec>> arenas_;
  std::vector<ShareableArena> shareable_arenas_;
};

//! @brief Plays the plan and compares with the oracle. `hashes`: gets a hash of all bytes that came out, by call and
//!        rank.
template <class Operator>
std::string play_as(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  Player<Operator> player(plan);
  auto const rank_main = [&](comm::Communicator& comm) -> Status {
    if (ranks_are_processes()) begin_process();
    settle<typename Player<Operator>::Exec>(comm.rank(), comm.world());
    // Streams first: after create, peers' kernels may wait for this rank's, which the runtime must not hold back.
    std::vector<typename Player<Operator>::Stream> streams(static_cast<std::size_t>(plan.setup.streams));
    comm::ArenaMemory const memory = player.arena(comm.rank());
    typename Operator::TransportOptions options{};
    if constexpr (std::is_same_v<decltype(options), fabric::LoopbackOptions>) options = plan.setup.loopback;
    auto op = Operator::create(comm, plan.setup.config, memory.bytes, memory.fd, options);
    if (!op.ok()) return op.status();
    Status const enqueued = player.perform(*op, comm.rank(), streams.data());
    for (auto& stream : streams) stream.synchronize();
    return enqueued.ok() ? op->status() : enqueued;
  };
  std::chrono::seconds const timeout(120);
  Status const played = ranks_are_processes()
                            ? ProcessWorld(plan.setup.world, plan.setup.gpu_per_node, timeout).run(rank_main)
                            : comm::LocalWorld(plan.setup.world, plan.setup.gpu_per_node, timeout).run(rank_main);
  if (!played.ok()) return played.message();
  if (hashes != nullptr)
    for (std::size_t i = 0; i < plan.calls.size(); ++i)
      for (int rank = 0; rank < plan.setup.world; ++rank) hashes->push_back(player.hash(rank, i));
  return player.verify();
}

}  // namespace mori_ep::test
