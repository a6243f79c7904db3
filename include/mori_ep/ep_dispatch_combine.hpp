// SPDX-License-Identifier: MIT
//! @file EpDispatchCombine: sends tokens to the ranks of their experts and brings the results back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/exec/exec.hpp"
#include "mori_ep/exec/tensor_view.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "mori_ep/layout/standard_moe.hpp"
#include "mori_ep/quant/coded.hpp"
#include "mori_ep/quant/none.hpp"
#include "mori_ep/routing/ticket.hpp"
#include "mori_ep/schedule/intra_node.hpp"
#include "mori_ep/schedule/operand_checks.hpp"
#include "mori_ep/schedule/scales.hpp"
#include "mori_ep/transport/xgmi.hpp"

namespace mori_ep {

//! @brief Moves MoE tokens to their experts and back.
//!
//! Story     {input, indices, weights} -> dispatch -> {rows, ticket} -> experts -> combine(ticket, rows) -> output
//! Shapes    input [t, H] Token, t <= M | indices [t, K] Index, -1 is no expert | weights [t, K] fp32 | scales [t,
//! bytes]
//!           rows [recv_count <= R, H], one per (token, distinct rank), ordered by (source rank, source token)
//! Requires  what the static_asserts below say, in this order
//! Order     Calls enqueue on the stream given and return. All ranks make the same calls in the same order. A buffer
//!           set's work must be ordered by one stream, or by events between streams. Views stay valid until the ticket
//!           is combined or dropped; the registered combine buffer may be written from the end of dispatch on.
//! Errors    Status or Result from the call, before anything is enqueued; what kernels meet later (a peer that does not
//!           come) is reported by `status()` and by every later call until `recover()`.
//! Hot path  dispatch and combine allocate nothing, read no environment and never wait on the host.
//! Source    MORI-EP user guide (names, one copy per distinct rank, zero-copy combine); counts to slots by prefix sums
//!           as NCCL EP's HT mode does; pulled combine as in TensorRT-LLM's one-sided all-to-all.
template <class Transport, class Schedule, class Quant, class Exec = exec::Default, class Reduce = reduce::Sum,
          class Index = std::int32_t>
class EpDispatchCombine {
  static_assert(transport::TransportPolicy<Transport>,
                "EpDispatchCombine: the first parameter must be a transport. Use transport::Xgmi.");
  static_assert(
      requires {
        typename Schedule::Half;
        Schedule::kName;
      },
      "EpDispatchCombine: the second parameter must be a schedule. Use schedule::IntraNode.");
  static_assert(
      quant::QuantPolicy<Quant>,
      "EpDispatchCombine: the third parameter must be a wire format. Use quant::None<mori_ep::bf16> or, for rows that "
      "are codes already, quant::Pair<quant::Payload<mori_ep::fp8_e4m3>, quant::None<mori_ep::bf16>>.");
  static_assert(exec::ExecPolicy<Exec>, "EpDispatchCombine: the fourth parameter must be a machine. Use exec::Host.");
  static_assert(reduce::ReducePolicy<Reduce>,
                "EpDispatchCombine: the fifth parameter must be a reduction. Use reduce::Sum or reduce::WeightedSum.");
  static_assert(routing::IndexType<Index>, "EpDispatchCombine: expert ids must be std::int32_t or std::int64_t.");
  static_assert(!Schedule::kNeedsPeerAccess || transport::HasPeerAccess<Transport>,
                "EpDispatchCombine: this schedule loads from and stores to peers' memory, which the transport cannot. "
                "Use transport::Xgmi, or schedule::InterNode.");
  static_assert(!Schedule::kNeedsNetwork || Transport::Ref::kFar,
                "EpDispatchCombine: this schedule crosses nodes by a network, and the transport has none. Use "
                "transport::Hybrid or transport::Rdma, or schedule::IntraNode.");

 public:
  using Wire = Quant;                                           //!< what rows look like on the way
  using Input = quant::InputUnit<typename Quant::Dispatch>;     //!< what tokens are made of: an element, or a code
  using Token = quant::ReceivedUnit<typename Quant::Dispatch>;  //!< what received rows are made of
  using Out = RowElement<typename Quant::Combine>;              //!< element of combined rows
  using IndexType = Index;
  using StreamRef = typename Exec::StreamRef;
  using TransportOptions = typename Transport::Options;  //!< of its network, if it has one
  using Ticket = routing::Ticket<EpDispatchCombine>;

  //! @brief A ticket's routing, kept for replay (another payload, the backward pass) after the ticket is gone. Must
  //!        outlive the work enqueued with it.
  class KeptRouting {
   public:
    [[nodiscard]] int tokens() const noexcept { return tokens_; }

   private:
    friend EpDispatchCombine;
    std::shared_ptr<routing::TicketLedger> ledger_;
    std::shared_ptr<std::byte> memory_;
    const Index* ids_ = nullptr;
    const float* weights_ = nullptr;
    std::uint64_t generation_ = 0;
    int tokens_ = 0;
  };

  //! @brief One rank's tokens. `input`, `indices` always, also with zero rows; or `input` and `routing`.
  struct DispatchInputs {
    TensorView<const Input> input = {};    //!< [t, H]; [t, H / 2] codes of two elements
    TensorView<const Index> indices = {};  //!< [t, K]
    TensorView<const float> weights = {};  //!< [t, K], optional
    TensorView<const std::byte> scales =
        {};  //!< [t, scale_dim * scale_type_size] bytes, when configured; not where dispatch codes
    const KeptRouting* routing =
        nullptr;  //!< replays a kept routing; `indices` is then empty, `weights` may replace the kept ones
    const std::int32_t* token_count = nullptr;  //!< device-side t, for graphs that replay: at most input.rows
    launch::LaunchParams launch = {};           //!< 0: the config's
  };

  //! @brief What a rank received; device-side views of the buffer set that `ticket` holds.
  struct Dispatched {
    TensorView<const Token> rows;              //!< [R, H] as `input`; rows [0, recv_count) are there
    TensorView<const Index> indices;           //!< [R, K] as the source had them
    TensorView<const float> weights;           //!< [R, K]; undefined for sources that gave none
    TensorView<const std::byte> scales;        //!< [R, bytes]; of a dispatch that codes: [R, ceil(H / block)] scales
    const std::int32_t* recv_count = nullptr;  //!< device-side
    const std::int32_t* expert_count =
        nullptr;  //!< [E_r] rows per local expert; a row counts once for each local expert it names
    Ticket ticket;
  };

  //! @brief What combine takes. `input` empty, or the registered buffer itself: zero-copy; else rows to be staged from.
  //!        Where combine codes its rows it is always the latter.
  struct CombineInputs {
    TensorView<const Out> input = {};       //!< [>= recv_count, H]
    TensorView<Out> output = {};            //!< [t, H]
    TensorView<const float> weights = {};   //!< [>= recv_count, K]: weights to send back; by every rank, if one asks
    TensorView<float> weights_output = {};  //!< [t, K]: their sums over the distinct ranks; asks for weights
    launch::LaunchParams launch = {};
  };

  //! @brief The arena one rank will need, before anything is allocated. `gpu_per_node` as the Communicator groups, 0: all
  //!        ranks are one node; it counts where the transport has a network.
  [[nodiscard]] static Result<Footprint> footprint(const EpDispatchCombineConfig& config, int world,
                                                   int gpu_per_node = 0) noexcept {
    if (Status s = validate(config, world, quant::hidden_unit<Quant>()); !s.ok()) return s;
    auto const scaled = schedule::with_scales<Quant>(config);
    if (!scaled.ok()) return scaled.status();
    auto const layout = Runner::layout_of(*scaled, world, gpu_per_node > 0 ? gpu_per_node : world);
    if (layout.overflow)
      return Error{
          .code = Errc::out_of_memory,
          .phase = Phase::create,
          .field = "footprint bytes",
          .value = -1,
          .hint = "The sizes overflow: lower max_num_inp_token_per_rank or hidden_dim, or set max_total_recv_tokens."};
    return Footprint{layout.bytes, layout.contract_bytes};
  }

  //! @brief Collective over `comm`: checks, allocates (or takes `memory`: 256-byte aligned, at least `footprint()`
  //!        bytes, kept alive until every rank's operator is gone; on AMD fine-grained; where ranks are processes with
  //!        `memory_fd`, by which the others map it (comm::ArenaMemory)), joins, and connects the transport's network, if
  //!        it has one, as `options` say. An error of one rank is the error of all.
  [[nodiscard]] static Result<EpDispatchCombine> create(const comm::Communicator& comm,
                                                        const EpDispatchCombineConfig& config,
                                                        std::span<std::byte> memory = {}, int memory_fd = -1,
                                                        const TransportOptions& options = {}) noexcept {
    auto runner = Runner::create(comm, config, {memory, memory_fd}, options, protocol());
    if (!runner.ok()) return runner.error();
    return EpDispatchCombine(comm, *schedule::with_scales<Quant>(config), std::move(*runner));
  }

  //! @brief Sends each token once to every distinct rank of its experts and receives this rank's rows.
  [[nodiscard]] Result<Dispatched> dispatch(const DispatchInputs& in, StreamRef stream) noexcept {
    return dispatch_halves(in, Half::both, stream);
  }
  //! @brief The first half: returns as dispatch does, but rows are there only after `dispatch_recv`.
  [[nodiscard]] Result<Dispatched> dispatch_send(const DispatchInputs& in, StreamRef stream) noexcept {
    return dispatch_halves(in, Half::send, stream);
  }
  //! @brief The second half: completes the receive side of a `dispatch_send`.
  Status dispatch_recv(Ticket& ticket, StreamRef stream) noexcept {
    if (Status s = usable(ticket, Stage::sent, "dispatch_recv takes the ticket of a dispatch_send, once."); !s.ok())
      return s;
    if (Status s = runner_->dispatch(ticket.set_, {}, Half::recv, {}, stream); !s.ok()) return s;
    ledger_->advance(ticket.set_, ticket.serial_, Stage::received);
    return {};
  }

  //! @brief y[t] = sum over the distinct ranks the token went to of the row that rank returned. Consumes the ticket; on
  //!        an error the ticket stays as it was.
  Status combine(Ticket&& ticket, const CombineInputs& in, StreamRef stream) noexcept {
    if (Status s = combine_half(ticket, in, Stage::received, Half::both, stream); !s.ok()) return s;
    ticket = Ticket{};
    return {};
  }
  //! @brief The first half: stages this rank's rows and tells the peers. Give `combine_recv` the same inputs.
  Status combine_send(Ticket& ticket, const CombineInputs& in, StreamRef stream) noexcept {
    if (Status s = combine_half(ticket, in, Stage::received, Half::send, stream); !s.ok()) return s;
    ledger_->advance(ticket.set_, ticket.serial_, Stage::combining);
    return {};
  }
  //! @brief The second half: sums this rank's tokens. Consumes the ticket.
  Status combine_recv(Ticket&& ticket, const CombineInputs& in, StreamRef stream) noexcept {
    if (Status s = combine_half(ticket, in, Stage::combining, Half::recv, stream); !s.ok()) return s;
    ticket = Ticket{};
    return {};
  }
  template <class T>
  Status combine(T&&, const CombineInputs&, StreamRef) noexcept {
    static_assert(!std::is_same_v<std::remove_cvref_t<T>, Ticket>,
                  "EpDispatchCombine::combine consumes the ticket: write combine(std::move(ticket), ...).");
    static_assert(std::is_same_v<std::remove_cvref_t<T>, Ticket>,
                  "EpDispatchCombine::combine takes the ticket that dispatch returned (it owns the routing), not "
                  "indices and not another operator's ticket.");
    return {};
  }

  //! @brief Copies the ticket's routing into memory of its own. Allocates: not for the hot path.
  [[nodiscard]] Result<KeptRouting> keep(const Ticket& ticket, StreamRef stream) noexcept {
    if (Status s = usable_any(ticket); !s.ok()) return s;
    auto const entries =
        static_cast<std::size_t>(ticket.tokens_) * static_cast<std::size_t>(config_.num_experts_per_token);
    std::size_t const bytes = entries * (sizeof(Index) + sizeof(float)) + 16;
    std::byte* memory = Exec::allocate(bytes);
    if (memory == nullptr && Exec::capturing())
      return Error{.code = Errc::device_error,
                   .rank = rank_,
                   .field = "stream capture",
                   .value = 1,
                   .limit = 0,
                   .hint = "keep allocates, which a capture forbids: keep the routing outside. The capture is void."};
    if (memory == nullptr)
      return Error{.code = Errc::out_of_memory,
                   .rank = rank_,
                   .field = "kept routing bytes",
                   .value = static_cast<std::int64_t>(bytes),
                   .hint = "Free memory and try again."};
    KeptRouting kept;
    kept.memory_ = std::shared_ptr<std::byte>(memory, [bytes](std::byte* m) { Exec::release(m, bytes); });
    kept.ledger_ = ledger_;
    kept.tokens_ = ticket.tokens_;
    kept.generation_ = ledger_->generation();
    auto* ids = reinterpret_cast<Index*>(memory);
    auto* weights = ticket.weighted_ ? reinterpret_cast<float*>(memory + entries * sizeof(Index)) : nullptr;
    kept.ids_ = ids;
    kept.weights_ = weights;
    if (Status s = runner_->copy_routing(ticket.set_, ticket.tokens_, ids, weights, stream); !s.ok()) return s;
    return kept;
  }

  using StandardMoe = layout::StandardMoe<Token>;       //!< of received rows
  using StandardMoeResults = layout::StandardMoe<Out>;  //!< of the experts' outputs

  //! @brief Copies the rows of a dispatch into the standard-MoE layout, by local expert. Needs a received ticket.
  Status convert_dispatch_output(const Ticket& ticket, const StandardMoe& packed, StreamRef stream,
                                 const launch::LaunchParams& launch = {}) noexcept {
    if (Status s = usable(ticket, Stage::received, "Call dispatch_recv first."); !s.ok()) return s;
    if (Status s = check_packed(packed); !s.ok()) return s;
    auto const from = runner_->buffers(ticket.set_);
    int const local_experts = config_.num_experts_per_rank, topk = config_.num_experts_per_token;
    Status s =
        runner_->launch_side(ticket.set_, launch, 0,
                             layout::IndexKernel<Buffers, Token, Index>{from, packed, rank_, world_, local_experts,
                                                                        topk, config_.max_num_inp_token_per_rank},
                             stream);
    if (!s.ok()) return s;
    return runner_->launch_side(
        ticket.set_, launch, capacity(),
        layout::PackKernel<Buffers, Token, Index>{from, packed, rank_, local_experts, topk,
                                                  static_cast<std::size_t>(units<Token>()), config_.scale_bytes()},
        stream);
  }
  //! @brief Weights and sums the experts' rows into the registered combine buffer; the combine after it gives no input.
  //!        `packed.packed_recv_x` holds the experts' outputs, the rest is what convert_dispatch_output wrote.
  Status convert_combine_input(const Ticket& ticket, const StandardMoeResults& packed, StreamRef stream,
                               const launch::LaunchParams& launch = {}) noexcept {
    static_assert(!kCombineCodes,
                  "EpDispatchCombine::convert_combine_input: this wire format codes the rows of combine, and the "
                  "standard-MoE layout is summed into them as they are. Choose quant::None for combine.");
    if (Status s = usable(ticket, Stage::received, "Call dispatch_recv first."); !s.ok()) return s;
    if (Status s = check_packed(packed); !s.ok()) return s;
    if (ticket.tokens_ > 0 && !ticket.weighted_)
      return check_.bad("weights rows", 0, ticket.tokens_,
                        "The standard-MoE combine applies weights: give them at dispatch.");
    return runner_->launch_side(ticket.set_, launch, capacity(),
                                layout::UnpackKernel<Buffers, Out, Index>{packed, runner_->buffers(ticket.set_), rank_,
                                                                          config_.num_experts_per_rank,
                                                                          config_.num_experts_per_token, hidden()},
                                stream);
  }
  //! @brief dispatch, then convert_dispatch_output. Every rank gives weights: convert_combine_input applies them.
  [[nodiscard]] Result<Dispatched> dispatch_standard_moe(const DispatchInputs& in, const StandardMoe& packed,
                                                         StreamRef stream) noexcept {
    if (Status s = check_packed(packed); !s.ok()) return s;
    if (in.input.rows > 0 && in.weights.data == nullptr && (in.routing == nullptr || in.routing->weights_ == nullptr))
      return check_.bad("weights rows", 0, in.input.rows,
                        "The standard-MoE combine applies weights: give them at dispatch.");
    auto got = dispatch(in, stream);
    if (!got.ok()) return got;
    if (Status s = convert_dispatch_output(got->ticket, packed, stream, in.launch); !s.ok()) return s;
    return got;
  }
  //! @brief convert_combine_input, then combine. Consumes the ticket; `in.input` stays empty.
  Status combine_standard_moe(Ticket&& ticket, const StandardMoeResults& packed, const CombineInputs& in,
                              StreamRef stream) noexcept {
    if (in.input.data != nullptr)
      return check_.bad("combine input rows", in.input.rows, 0,
                        "The rows come from the packed layout: leave input empty.");
    if (Status s = convert_combine_input(ticket, packed, stream, in.launch); !s.ok()) return s;
    return combine(std::move(ticket), in, stream);
  }

  //! @brief Where expert outputs may be written directly, [R, H]; combine then copies nothing. Empty for a ticket of another
  //!        operator, or one that is no longer valid.
  [[nodiscard]] TensorView<Out> get_registered_combine_input_buffer(const Ticket& ticket) const noexcept {
    static_assert(
        !kCombineCodes,
        "EpDispatchCombine::get_registered_combine_input_buffer: this wire format codes the rows of combine, so "
        "none can be written in place. Give combine an input, or choose quant::None for combine.");
    if (!usable_any(ticket).ok()) return {};
    return {runner_->buffers(ticket.set_).combine_x, capacity(), config_.hidden_dim};
  }
  //! @brief [R] source positions of the received rows, device-side: src_rank * M + src_token. Empty as above.
  [[nodiscard]] TensorView<const std::int32_t> get_dispatch_src_token_pos(const Ticket& ticket) const noexcept {
    if (!usable_any(ticket).ok()) return {};
    return {runner_->buffers(ticket.set_).src_pos, capacity(), 1};
  }
  [[nodiscard]] routing::SourcePos decode_send_flat_idx(std::int32_t flat) const noexcept {
    return routing::decode_send_flat_idx(flat, config_.max_num_inp_token_per_rank);
  }

  //! @brief Waits for the stream, then gives the dispatch's totals, true total and drops included.
  [[nodiscard]] Result<routing::RecvTotals> recv_totals(const Ticket& ticket, StreamRef stream) const noexcept {
    if (Status s = usable_any(ticket); !s.ok()) return s;
    auto totals = runner_->totals(ticket.set_, stream);
    if (!totals.ok()) return totals;
    if (Status s = runner_->fault(); !s.ok()) return s;
    return totals;
  }
  //! @brief Waits for the stream, then says how the dispatch went: ok, a fault, or a receive overflow with its figures.
  [[nodiscard]] Status check(const Ticket& ticket, StreamRef stream) const noexcept {
    auto totals = recv_totals(ticket, stream);
    if (!totals.ok()) return totals.status();
    if (totals->dropped == 0) return {};
    return Error{.code = Errc::recv_overflow,
                 .rank = rank_,
                 .field = "rows routed to this rank",
                 .value = totals->total,
                 .limit = capacity(),
                 .hint =
                     "The rows past the limit were dropped. Raise max_total_recv_tokens, or set it to 0 for room for "
                     "everything."};
  }
  //! @brief The first fault that this rank has met or been told of by a peer, or ok. Waits for nothing.
  [[nodiscard]] Status status() const noexcept { return runner_->fault(); }
  //! @brief What this rank has put to `peer` over a network since create() or recover(), not during either. Any thread.
  [[nodiscard]] fabric::Traffic network_traffic(int peer) const noexcept { return runner_->network_traffic(peer); }

  //! @brief The way back after a fault. Collective: every rank calls it, also one that has seen no fault. Waits for `stream`,
  //!        voids all tickets and kept routings. Errors: a rank that does not come.
  Status recover(StreamRef stream) noexcept { return recover(runner_->members(), stream); }
  //! @brief The same with those of `members` (ascending) that are left, this rank among them: only they call it, all with
  //!        the same. From then on no token goes to the others: ids of their experts count as invalid. What dispatch and
  //!        get_registered_combine_input_buffer() gave before is void: the arenas are new, so that a rank that is left
  //!        out but still running harms nobody. In worlds of up to 64 ranks, in memory of the operator's own. A rank that
  //!        was left out does not come back: create another operator with it.
  Status recover(std::span<const int> members, StreamRef stream) noexcept {
    if (Status s = runner_->may_go_on(members); !s.ok()) return s;  // and every ticket is good as before
    ledger_->void_all();
    return runner_->recover(members, stream);
  }
  //! @brief The ranks that dispatch and combine among each other, ascending: all, or those of the last recover().
  [[nodiscard]] std::span<const int> members() const noexcept { return runner_->members(); }
  //! @brief recover() when this rank has met a fault or was told of one, else nothing, at no cost: the protocol needs no
  //!        reset between iterations (MORI's API has one, so callers may keep the call).
  Status reset(StreamRef stream) noexcept { return runner_->fault().ok() ? Status{} : recover(stream); }

  [[nodiscard]] const EpDispatchCombineConfig& config() const noexcept { return config_; }
  //! @brief R: how many rows a dispatch can deliver to one rank.
  [[nodiscard]] std::int64_t capacity() const noexcept { return config_.recv_capacity(world_); }

 private:
  using Half = typename Schedule::Half;
  using Stage = routing::TicketLedger::Stage;
  using Runner = typename Schedule::template Runner<Transport, Exec, Quant, Reduce, Index>;
  using Buffers = typename Runner::Buffers;
  static constexpr bool kCombineCodes = !quant::HasPlainCombine<Quant>;
  static constexpr std::int64_t kRowAlign = 16;

  template <class T>
  [[nodiscard]] Status check_packed(const layout::StandardMoe<T>& packed) const noexcept {
    return layout::check(packed, config_.num_experts_per_rank, config_.hidden_dim, config_.scale_bytes(), check_);
  }

  static consteval std::uint64_t protocol() noexcept {  // of no device: clang would compile a constexpr one for it
    return schedule::ProtocolHash()
        .add(schedule::kProtocolVersion)
        .add(Transport::kName)
        .add(Schedule::kName)
        .add(Quant::kName)
        .add(Reduce::kName)
        .add(sizeof(Index))
        .value();
  }

  EpDispatchCombine(const comm::Communicator& comm, const EpDispatchCombineConfig& config,
                    std::unique_ptr<Runner> runner)
      : config_(config),
        check_{comm.rank()},
        rank_(comm.rank()),
        world_(comm.world()),
        runner_(std::move(runner)),
        ledger_(std::make_shared<routing::TicketLedger>(config.num_buffer_sets)) {}

  [[nodiscard]] std::size_t hidden() const noexcept { return static_cast<std::size_t>(config_.hidden_dim); }
  //! How many of Unit make a row.
  template <class Unit>
  [[nodiscard]] std::int64_t units() const noexcept {
    return quant::units_of<Unit>(config_.hidden_dim);
  }
  [[nodiscard]] Status usable_any(const Ticket& ticket) const noexcept {
    if (Status s = runner_->fault(); !s.ok()) return s;
    auto const wrong = [&](const char* hint) {
      return Error{.code = Errc::wrong_ticket,
                   .rank = rank_,
                   .field = "ticket",
                   .value = static_cast<std::int64_t>(ticket.serial_),
                   .hint = hint};
    };
    if (!ticket.valid()) return wrong("It was moved from, combined or never filled.");
    if (ticket.ledger_ != ledger_) return wrong("It belongs to another operator.");
    if (!ledger_->knows(ticket.set_, ticket.serial_))
      return wrong("It is void since a recover() or reset(): dispatch again.");
    return {};
  }
  [[nodiscard]] Status usable(const Ticket& ticket, Stage stage, const char* hint) const noexcept {
    if (Status s = usable_any(ticket); !s.ok()) return s;
    if (!ledger_->holds(ticket.set_, ticket.serial_, stage))
      return Error{.code = Errc::wrong_ticket,
                   .rank = rank_,
                   .field = "ticket",
                   .value = static_cast<std::int64_t>(ticket.serial_),
                   .hint = hint};
    return {};
  }

  Result<Dispatched> dispatch_halves(const DispatchInputs& in, Half half, StreamRef stream) noexcept {
    if (Status s = runner_->fault(); !s.ok()) return s;
    schedule::DispatchOperands<Index> operands;
    if (Status s = check_inputs(in, operands); !s.ok()) return s;
    std::uint64_t serial = 0;
    auto set = ledger_->take(rank_, serial);
    if (!set.ok()) return set.error();
    Ticket ticket(ledger_, *set, serial, operands.tokens, operands.weights != nullptr);
    Status enqueued;
    if (ledger_->settle_receive(*set)) enqueued = runner_->dispatch(*set, {}, Half::recv, {}, stream);
    if (enqueued.ok()) enqueued = runner_->dispatch(*set, operands, half, in.launch, stream);
    if (!enqueued.ok()) {
      ledger_->untake(*set);
      ticket.ledger_ = nullptr;
      return enqueued;
    }
    if (half == Half::both) ledger_->advance(*set, serial, Stage::received);
    auto const b = runner_->buffers(*set);
    return Dispatched{.rows = {b.x, capacity(), units<Token>()},
                      .indices = {b.ids, capacity(), config_.num_experts_per_token},
                      .weights = {b.weights, capacity(), config_.num_experts_per_token},
                      .scales = {b.scales, config_.scale_bytes() == 0 ? 0 : capacity(),
                                 static_cast<std::int64_t>(config_.scale_bytes())},
                      .recv_count = &b.totals->recv_count,
                      .expert_count = b.expert_count,
                      .ticket = std::move(ticket)};
  }

  [[nodiscard]] Status check_inputs(const DispatchInputs& in, schedule::DispatchOperands<Index>& out) const noexcept {
    std::int64_t const t = in.input.rows, k = config_.num_experts_per_token;
    if (t < 0 || t > config_.max_num_inp_token_per_rank)
      return check_.bad("input rows", t, config_.max_num_inp_token_per_rank,
                        "A call may bring 0 to max_num_inp_token_per_rank tokens: split the batch, or configure more.");
    if (Status s =
            check_.shaped(in.input, "input rows", "input columns", "input row bytes", t, units<Input>(), kRowAlign);
        !s.ok())
      return s;
    out.tokens = static_cast<std::int32_t>(t);
    out.token_count = in.token_count;
    out.x = reinterpret_cast<const std::byte*>(in.input.data);
    out.x_stride = static_cast<std::size_t>(in.input.ld) * sizeof(Input);
    if (in.routing != nullptr) {
      if (in.routing->ledger_ != ledger_)
        return Error{.code = Errc::wrong_ticket,
                     .rank = rank_,
                     .field = "kept routing tokens",
                     .value = in.routing->tokens_,
                     .hint = "The kept routing belongs to another operator."};
      if (in.routing->generation_ != ledger_->generation())
        return Error{.code = Errc::wrong_ticket,
                     .rank = rank_,
                     .field = "kept routing tokens",
                     .value = in.routing->tokens_,
                     .hint = "It was kept before a recover() or reset(): dispatch and keep again."};
      if (in.routing->tokens_ != t)
        return check_.bad("input rows", t, in.routing->tokens_,
                          "A replay brings as many tokens as the kept dispatch did.");
      if (in.indices.data != nullptr)
        return check_.bad("indices rows", in.indices.rows, 0, "Give indices or a kept routing, not both.");
      out.ids = in.routing->ids_;
      out.weights = in.routing->weights_;
      out.ids_stride = out.weights_stride = static_cast<std::size_t>(k);
    } else {
      if (Status s =
              check_.shaped(in.indices, "indices rows", "indices columns", "indices row bytes", t, k, sizeof(Index));
          !s.ok())
        return s;
      out.ids = in.indices.data;
      out.ids_stride = static_cast<std::size_t>(in.indices.ld);
    }
    if (in.weights.data != nullptr || in.weights.rows != 0) {
      if (Status s =
              check_.shaped(in.weights, "weights rows", "weights columns", "weights row bytes", t, k, sizeof(float));
          !s.ok())
        return s;
      out.weights = in.weights.data;
      out.weights_stride = static_cast<std::size_t>(in.weights.ld);
    }
    if (Reduce::kWeighted && t > 0 && out.weights == nullptr)
      return check_.bad("weights rows", 0, t, "reduce::WeightedSum needs the weights at dispatch.");
    auto const scale_bytes = quant::CodesDispatch<Quant> ? 0 : static_cast<std::int64_t>(config_.scale_bytes());
    if (quant::CodesDispatch<Quant> && in.scales.data != nullptr)
      return check_.bad("scales columns", in.scales.cols, 0,
                        "Dispatch codes the rows and makes their scales: give none.");
    if (scale_bytes == 0 && in.scales.data != nullptr)
      return check_.bad("scales columns", in.scales.cols, 0,
                        "Configure scale_dim and scale_type_size to carry scales.");
    if (scale_bytes != 0) {
      if (Status s = check_.shaped(in.scales, "scales rows", "scales columns", "scales row bytes", t, scale_bytes, 1);
          !s.ok())
        return s;
      out.scales = in.scales.data;
      out.scales_stride = static_cast<std::size_t>(in.scales.ld);
    }
    return {};
  }

  [[nodiscard]] Status combine_half(const Ticket& ticket, const CombineInputs& in, Stage stage, Half half,
                                    StreamRef stream) noexcept {
    if (Status s = usable(ticket, stage,
                          stage == Stage::received ? "Call dispatch_recv before combine; a ticket is combined once."
                                                   : "combine_recv takes the ticket of a combine_send, once.");
        !s.ok())
      return s;
    std::int64_t const t = ticket.tokens_, k = config_.num_experts_per_token;
    if (Status s = check_.shaped(in.output, "output rows", "output columns", "output row bytes", t, config_.hidden_dim,
                                 kRowAlign);
        !s.ok())
      return s;
    schedule::CombineOperands out;
    out.tokens = ticket.tokens_;
    out.y = reinterpret_cast<std::byte*>(in.output.data);
    out.y_stride = static_cast<std::size_t>(in.output.ld) * sizeof(Out);
    if (in.input.data != nullptr || in.input.rows != 0) {
      if (in.input.rows < 0)
        return check_.bad("combine input rows", in.input.rows, 0, "Give every row that dispatch delivered.");
      if (in.input.data == nullptr)
        return check_.bad(
            "combine input row bytes", 0, kRowAlign,
            "A view with rows needs memory; leave input empty when the rows are in the registered buffer.");
      if (in.input.cols != config_.hidden_dim)
        return check_.bad("combine input columns", in.input.cols, config_.hidden_dim,
                          "It must have hidden_dim columns.");
      if (Status s = check_.aligned(in.input, config_.hidden_dim, "combine input row bytes", kRowAlign); !s.ok())
        return s;
      bool const registered = !kCombineCodes && in.input.data == runner_->buffers(ticket.set_).combine_x;
      if (registered && in.input.ld != config_.hidden_dim)
        return check_.bad("combine input row bytes", in.input.ld * static_cast<std::int64_t>(sizeof(Out)),
                          config_.hidden_dim * static_cast<std::int64_t>(sizeof(Out)),
                          "The registered buffer's rows lie side by side: use the view that it comes with.");
      if (!registered) {
        out.x = reinterpret_cast<const std::byte*>(in.input.data);
        out.x_rows = in.input.rows;
        out.x_stride = static_cast<std::size_t>(in.input.ld) * sizeof(Out);
      }
    }
    if (in.weights_output.data != nullptr || in.weights_output.rows != 0) {
      if (Status s = check_.shaped(in.weights_output, "weights_output rows", "weights_output columns",
                                   "weights_output row bytes", t, k, sizeof(float));
          !s.ok())
        return s;
      out.weights_out = in.weights_output.data;
      out.weights_out_stride = static_cast<std::size_t>(in.weights_output.ld);
    }
    if (in.weights.data != nullptr || in.weights.rows != 0) {
      if (in.weights.rows < 0 || in.weights.data == nullptr)
        return check_.bad("combine weights rows", in.weights.rows, 0, "A view with rows needs memory.");
      if (in.weights.cols != k)
        return check_.bad("combine weights columns", in.weights.cols, k, "It must have num_experts_per_token columns.");
      if (Status s = check_.aligned(in.weights, k, "combine weights row bytes", sizeof(float)); !s.ok()) return s;
      out.weights = in.weights.data;
      out.weights_rows = in.weights.rows;
      out.weights_stride = static_cast<std::size_t>(in.weights.ld);
    }
    return runner_->combine(ticket.set_, out, half, in.launch, stream);
  }

  EpDispatchCombineConfig config_;
  schedule::OperandChecks check_;
  int rank_ = 0, world_ = 1;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<routing::TicketLedger> ledger_;
};

}  // namespace mori_ep
