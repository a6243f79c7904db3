// SPDX-License-Identifier: MIT
//! @file schedule::IntraNode: all ranks reach each other's memory by load and store.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "mori_ep/quant/policy.hpp"
#include "mori_ep/schedule/intra_node/combine_kernel.hpp"
#include "mori_ep/schedule/intra_node/dispatch_kernel.hpp"
#include "mori_ep/schedule/intra_node/fault_report.hpp"
#include "mori_ep/schedule/intra_node/recovery.hpp"
#include "mori_ep/schedule/intra_node/side_kernels.hpp"
#include "mori_ep/schedule/join.hpp"
#include "mori_ep/schedule/operands.hpp"
#include "mori_ep/schedule/reduce.hpp"
#include "mori_ep/schedule/scales.hpp"
#include "mori_ep/transport/xgmi.hpp"

namespace mori_ep::schedule {

namespace intra_node {

//! @brief The host half: one rank's arena, its layout, and the launches. Not thread-safe per buffer set.
template <class Transport, exec::ExecPolicy Exec, quant::QuantPolicy Quant, reduce::ReducePolicy Reduce,
          routing::IndexType Index, class PeerRef = typename Transport::Ref>
class Runner {
 public:
  using Ref = PeerRef;  //!< the transport's, or what the schedule makes of it
  using StreamRef = typename Exec::StreamRef;

  using Link = typename Transport::template Link<Exec>;
  using Options = typename Transport::Options;
  using Row = typename Quant::Combine;                             //!< as combine sums it
  using Received = quant::ReceivedUnit<typename Quant::Dispatch>;  //!< what dispatched rows are made of
  using Out = RowElement<Row>;
  using Buffers = RecvBuffers<Received, Out, Index>;

  [[nodiscard]] static Layout layout_of(const EpDispatchCombineConfig& config, int world, int gpu_per_node) noexcept {
    transport::NearRanks const first = Transport::near(0, world, gpu_per_node);  // the last node may be smaller
    return Layout::make(config, world, row_sizes(config), sizeof(Index),
                        {.far = Ref::kFar,
                         .nodes = {.per = first.end - first.begin, .world = world},
                         .relays = Ref::kRelays,
                         .sums = sum_form<Ref, Row>(),
                         .own_first = sums_own_first<Ref, Row>(),
                         .weighted = Reduce::kWeighted});
  }

  //! @brief Collective: memory, join check, exchange of addresses. Any error is every rank's error.
  static Result<std::unique_ptr<Runner>> create(const comm::Communicator& comm, const EpDispatchCombineConfig& given,
                                                const comm::ArenaMemory& memory, const Options& options,
                                                std::uint64_t protocol) noexcept {
    auto const scaled = with_scales<Quant>(given);
    EpDispatchCombineConfig const config = scaled.ok() ? *scaled : given;
    JoinRecord mine{.protocol = protocol,
                    .config = config,
                    .refused_scales = scaled.ok() ? 0 : given.scale_dim,
                    .hidden_unit = quant::hidden_unit<Quant>()};
    launch::LaunchLimits limits;
    std::vector<int> const near = near_ranks(comm);
    mine.near_begin = near.front();
    std::shared_ptr<comm::Arena<Exec>> arena, board;
    Layout layout;
    mine.devices = Exec::device_count();
    mine.process = comm.location().process;
    mine.host = comm.location().host;
    bool const brought = !memory.bytes.empty() || memory.fd >= 0, apart = !comm.in_process(near);
    if (mine.devices > 0 && validate(config, comm.world(), quant::hidden_unit<Quant>()).ok()) {
      layout = layout_of(config, comm.world(), comm.gpu_per_node());
      limits = limits_of(config, comm.world(), layout.columns);
      int const warps = config.warp_num_per_block > 0 ? config.warp_num_per_block : limits.default_warps;
      (void)Exec::template prepare<CountedKernel<KeepKernel<Index>>>();  // their launches say so if they cannot be
      (void)Exec::template prepare<CountedKernel<TotalsKernel>>();
      if constexpr (exec::SharesBetweenProcesses<Exec>) mine.shares_between_processes = !apart || Exec::can_share();
      if (Ref::kRelays) mine.sums_by = layout.relay[0].nodes.per;
      mine.device = Exec::device();
      mine.ordinal = Exec::ordinal();
      mine.reachable = Exec::reachable();
      mine.max_warps = limits.residency.max_warps;
      mine.max_blocks = warps <= mine.max_warps ? limits.residency.blocks[warps] : 0;
      mine.most_blocks = limits.most_blocks;
      mine.needed_bytes = layout.overflow ? -1 : static_cast<std::int64_t>(layout.bytes);
      if (std::ssize(near) < comm.world()) mine.carried = {layout.largest_put, layout.bytes, layout.signal_bytes};
      mine.heap_limit = comm.heap()->limit();
      mine.heap_used = comm.heap()->used();
      bool const fits = brought || mine.needed_bytes <= mine.heap_limit - mine.heap_used;
      if (!layout.overflow && fits) {
        arena = brought ? std::make_shared<comm::Arena<Exec>>(memory)
                        : std::make_shared<comm::Arena<Exec>>(layout.bytes, Transport::kPlace, apart);
        board = std::make_shared<comm::Arena<Exec>>(BoardLayout::make(comm.world()).bytes, comm::Place::board, apart);
        bool const there = arena->data() != nullptr && board->data() != nullptr;
        mine.capturing = !there && Exec::capturing() ? 1 : 0;
        mine.memory_given = brought ? 1 : 0;
        mine.memory_descriptor = arena->shared_as().open() ? 1 : 0;
        mine.memory_bytes = there ? static_cast<std::int64_t>(arena->bytes()) : 0;
        mine.memory_aligned =
            reinterpret_cast<std::uintptr_t>(arena->data()) % comm::LayoutBuilder::kAlign == 0 ? 1 : 0;
        mine.memory_shared = Exec::share_memory().ok() ? 1 : 0;
      }
    }
    std::vector<JoinRecord> records(static_cast<std::size_t>(comm.world()));
    if (Status s = comm.all_gather(&mine, records.data(), sizeof(mine)); !s.ok()) return s;
    if (Status s = judge(records); !s.ok()) return s;
    limits.sharers = launches_beside(records, comm.rank());
    limits.default_blocks = Exec::default_blocks(limits.blocks(limits.default_warps),
                                                 comm.ranks_on_host() / sharers_of(records, comm.rank()));
    auto arenas = comm::SymmetricHeap<Exec>::join(comm, near, std::move(arena));
    if (!arenas.ok()) return arenas.error();
    auto boards = comm::SymmetricHeap<Exec>::join(comm, near, std::move(board));
    if (!boards.ok()) return boards.error();
    comm::HeapBudget::Share heap;
    if (!brought) heap = {comm.heap(), mine.needed_bytes};
    std::unique_ptr<Runner> runner(new Runner(comm, config, layout, limits, std::move(*arenas), std::move(*boards)));
    runner->heap_ = std::move(heap);
    runner->several_devices_ = sharers_of(records, comm.rank()) < comm.world();
    runner->options_ = options;
    Status const ready = runner->initialise();
    if (Status s = comm.barrier(); !s.ok()) return s;
    if (!ready.ok()) return ready;
    if (Status s = runner->connect(); !s.ok()) return s;
    return Result<std::unique_ptr<Runner>>(std::move(runner));
  }

  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() {
    // Freeing an arena waits for its own device. This rank's launches write to arenas on others, too.
    if constexpr (Exec::kFreeWaits)
      if (several_devices_) Exec::drain();
    // Kernels on their way still use the arena. Each is bounded by its waits; memory that outlasts them is given up
    // rather than freed under a kernel.
    if (wait_idle(std::chrono::milliseconds(8 * config_.timeout_ms))) return;
    arenas_.abandon();
    boards_.abandon();
  }

  Status dispatch(int set, const DispatchOperands<Index>& in, Half halves, const launch::LaunchParams& call,
                  StreamRef stream) noexcept {
    auto params = resolve_phase(call);
    if (!params.ok()) return params.error();
    Dispatch const kernel{
        .args = {.port = port(),
                 .set = layout_.sets[set],
                 .far = far_layout(set),
                 .placement = routing::Placement(comm_.world(), config_.num_experts_per_rank, absent_),
                 .topk = config_.num_experts_per_token,
                 .routes_per_token = layout_.routes_per_token,
                 .max_tokens = config_.max_num_inp_token_per_rank,
                 .capacity = static_cast<std::int32_t>(config_.recv_capacity(comm_.world())),
                 .relay_blocks = params->rdma_block_num,
                 .halves = halves,
                 .tokens = in.tokens,
                 .token_count = in.token_count,
                 .x = in.x,
                 .ids = in.ids,
                 .weights = in.weights,
                 .scales = in.scales,
                 .x_stride = in.x_stride,
                 .ids_stride = in.ids_stride,
                 .weights_stride = in.weights_stride,
                 .scales_stride = in.scales_stride,
                 .row_bytes = row_sizes(config_).received,
                 .scale_bytes = config_.scale_bytes(),
                 .coded = quant::CodesDispatch<Quant> && config_.scale_bytes() != 0}};
    exec::LaunchGeometry geometry{.blocks = params->block_num, .warps = params->warp_per_block};
    if (halves == Half::recv) geometry = {.blocks = 1, .warps = 1};
    geometry.shared_bytes = kernel.shared_bytes(comm_.world(), layout_.columns, kernel.args.placement.experts(),
                                                kernel.args.topk, geometry.warps);
    geometry.traffic_bytes = traffic(in.tokens, row_sizes(config_).received);
    return launch(set, geometry, kernel, stream);
  }

  Status combine(int set, const CombineOperands& in, Half halves, const launch::LaunchParams& call,
                 StreamRef stream) noexcept {
    auto params = resolve_phase(call);
    if (!params.ok()) return params.error();
    Combine const kernel{.port = port(),
                         .set = layout_.sets[set],
                         .far = far_layout(set),
                         .topk = config_.num_experts_per_token,
                         .routes_per_token = layout_.routes_per_token,
                         .ranks_per_group = ranks_per_group(),
                         .max_tokens = config_.max_num_inp_token_per_rank,
                         .relay_blocks = params->rdma_block_num,
                         .halves = halves,
                         .x = in.x,
                         .weights = in.weights,
                         .x_rows = in.x_rows,
                         .weights_rows = in.weights_rows,
                         .y = in.y,
                         .weights_out = in.weights_out,
                         .x_stride = in.x_stride,
                         .weights_stride = in.weights_stride,
                         .y_stride = in.y_stride,
                         .weights_out_stride = in.weights_out_stride,
                         .hidden = static_cast<std::size_t>(config_.hidden_dim)};
    exec::LaunchGeometry geometry{.blocks = params->block_num, .warps = params->warp_per_block};
    geometry.shared_bytes = kernel.shared_bytes(comm_.world(), kernel.topk, geometry.warps);
    geometry.traffic_bytes = traffic(in.tokens, row_sizes(config_).sum);
    return launch(set, geometry, kernel, stream);
  }

  //! @brief Copies the routing of the last dispatch on `set`, in stream order, to `to_ids` [t, K] and
  //!        `to_weights` [t, K] (or null).
  Status copy_routing(int set, int tokens, Index* to_ids, float* to_weights, StreamRef stream) noexcept {
    const SetLayout& s = layout_.sets[set];
    return launch_side(
        set, {.block_num = 1, .warp_per_block = 1}, 0,
        KeepKernel<Index>{to_ids, to_weights, at<Index>(s.sent_ids), at<float>(s.sent_weights), at<SetState>(s.state),
                          at<FaultGate>(layout_.gate), tokens, config_.num_experts_per_token},
        stream);
  }

  //! @brief Enqueues a kernel that reads or writes `set` beside dispatch and combine, writing about `rows` rows.
  template <class Kernel>
  Status launch_side(int set, const launch::LaunchParams& call, std::int64_t rows, const Kernel& kernel,
                     StreamRef stream) noexcept {
    auto params = resolve(call);
    if (!params.ok()) return params.error();
    exec::LaunchGeometry const geometry{.blocks = params->block_num,
                                        .warps = params->warp_per_block,
                                        .shared_bytes = kernel.shared_bytes(params->warp_per_block),
                                        .traffic_bytes = static_cast<std::size_t>(rows) * row_sizes(config_).sum};
    return launch(set, geometry, CountedKernel<Kernel>{kernel, at<SetState>(layout_.sets[set].state)}, stream);
  }

  //! @brief What this rank's kernels met, or what a peer has told of its own; ok when nothing.
  [[nodiscard]] Status fault() const noexcept {
    if (Status s = link_ ? link_->status() : Status{}; !s.ok()) return s;
    bool const shares_device = Exec::kFreeWaits && limits_.sharers > config_.num_buffer_sets;
    return told_fault(*board_at<FaultRecord>(board_layout_.record),
                      std::span(board_at<std::uint64_t>(board_layout_.notices), std::size_t(comm_.world())),
                      comm_.rank(), shares_device);
  }

  [[nodiscard]] fabric::Traffic network_traffic(int peer) const noexcept {
    return link_ ? link_->traffic(peer) : fabric::Traffic{};
  }

  //! @brief May recover() be called with these?
  [[nodiscard]] Status may_go_on(std::span<const int> members) const noexcept {
    auto const bad = [&](const char* field, std::int64_t value, std::int64_t limit, const char* hint) {
      return Error{.code = Errc::invalid_argument,
                   .rank = comm_.rank(),
                   .field = field,
                   .value = value,
                   .limit = limit,
                   .hint = hint};
    };
    if (auto const me = comm::place_of(members, comm_.rank(), comm_.world()); !me.ok()) return me.status();
    for (int member : members)
      if (routing::is_absent(absent_, member))
        return bad("member of a group", member, Error::kNoLimit,
                   "It was left out before, and does not come back: create an operator anew with it.");
    if (members.size() == members_.size()) return {};
    if (Ref::kFar)
      return bad("members", static_cast<std::int64_t>(members.size()), static_cast<std::int64_t>(members_.size()),
                 "Over a network all ranks go on, or none: create an operator anew.");
    if (comm_.world() > 64)
      return bad("world", comm_.world(), 64, "Larger worlds go on with all ranks only: create an operator anew.");
    if (!arenas_.owned())
      return bad("caller's memory", 1, 0,
                 "A rank that is left out may still write to it: create an operator anew, with other memory.");
    return {};
  }

  //! @brief Collective among `members`, all ranks that are left or some of them, which may_go_on() with each other: their
  //!        kernels have ended, then signals, states and faults start anew. Fewer than before move to new arenas, since
  //!        nobody knows what a rank that is left out may still write to the old ones.
  Status recover(std::span<const int> members, StreamRef stream) noexcept {
    if (Status s = Exec::synchronize(stream); !s.ok()) return s;
    if constexpr (Exec::kFreeWaits) Exec::drain();  // the other sets' streams
    if (!wait_idle(std::chrono::milliseconds(8 * config_.timeout_ms)))
      return Error{.code = Errc::timeout,
                   .phase = Phase::barrier,
                   .rank = comm_.rank(),
                   .hint = "Work of this operator on another stream does not end."};
    auto agreed = agree(comm_, members, Step::begin, members_.size());
    if (!agreed.ok()) return agreed.status();
    if (*agreed == Going::elsewhere)
      if (Status s = move_to_new_arenas(members); !s.ok()) return s;
    if constexpr (Ref::kFar) {
      // Whatever was on its way over the network has arrived, or never will, before anybody begins anew.
      link_.reset();
      arenas_.keep(nullptr);  // its ring: while no rank has a kernel
      if (auto ended = agree(comm_, members, Step::network_ended, members_.size()); !ended.ok()) return ended.status();
    }
    Status ready = initialise();
    if (auto done = agree(comm_, members, Step::ready, members_.size()); !done.ok()) return done.status();
    if constexpr (Ref::kFar)
      if (ready.ok()) ready = connect();
    return ready;
  }
  //! @brief The ranks that are left, ascending.
  [[nodiscard]] std::span<const int> members() const noexcept { return members_; }

  [[nodiscard]] Result<routing::RecvTotals> totals(int set, StreamRef stream) noexcept {
    routing::RecvTotals* const out = board_at<routing::RecvTotals>(board_layout_.totals) + set;
    TotalsKernel const kernel{&at<SetState>(layout_.sets[set].state)->totals, out};
    if (Status s = launch_side(set, {.block_num = 1, .warp_per_block = 1}, 0, kernel, stream); !s.ok()) return s;
    if (Status s = Exec::synchronize(stream); !s.ok()) return s;
    return *out;  // a stream that is waited for has its kernels' stores done
  }

  [[nodiscard]] Buffers buffers(int set) const noexcept {
    const SetLayout& s = layout_.sets[set];
    return {at<Received>(s.recv_x),         at<float>(s.recv_weights),        at<Index>(s.recv_ids),
            at<std::byte>(s.recv_scales),   at<std::int32_t>(s.recv_src_pos), at<Out>(s.combine_x),
            &at<SetState>(s.state)->totals, at<std::int32_t>(s.expert_count)};
  }

 private:
  using Dispatch = DispatchKernel<Ref, Index, Reduce::kWeighted, quant::CodedOrVoid<typename Quant::Dispatch>>;
  using Combine = CombineKernel<Ref, Row, Reduce::kWeighted>;

  Runner(const comm::Communicator& comm, const EpDispatchCombineConfig& config, const Layout& layout,
         const launch::LaunchLimits& limits, comm::SymmetricHeap<Exec> arenas,
         comm::SymmetricHeap<Exec> boards) noexcept
      : comm_(comm),
        config_(config),
        layout_(layout),
        board_layout_(BoardLayout::make(comm.world())),
        limits_(limits),
        arenas_(std::move(arenas)),
        boards_(std::move(boards)),
        members_(comm::all_ranks(comm.world())) {}

  //! The ranks that load and store reach, this one among them.
  [[nodiscard]] static std::vector<int> near_ranks(const comm::Communicator& comm) {
    transport::NearRanks const near = Transport::near(comm.rank(), comm.world(), comm.gpu_per_node());
    std::vector<int> ranks(static_cast<std::size_t>(near.end - near.begin));
    std::iota(ranks.begin(), ranks.end(), near.begin);
    return ranks;
  }
  //! Collective: the network between the arenas, if there is one.
  Status connect() noexcept {
    auto link =
        Link::connect(comm_,
                      transport::Ends{.near = Transport::near(comm_.rank(), comm_.world(), comm_.gpu_per_node()),
                                      .arena = {arenas_.base(), layout_.bytes},
                                      .board = {boards_.base(), board_layout_.bytes},
                                      .owner = std::make_shared<std::array<std::shared_ptr<const void>, 2>>(
                                          std::array{arenas_.owner(), boards_.owner()}),
                                      .keep = [this](std::shared_ptr<const void> m) { arenas_.keep(std::move(m)); },
                                      .fault = [this] { return own_fault_word(); },
                                      .notices = board_layout_.notices.offset,
                                      .lost = [this](int peer) { return note_lost(peer); }},
                      options_);
    if (!link.ok()) return link.status();
    link_.emplace(std::move(*link));
    return {};
  }
  //! For a thread of the network: what this rank's kernels have met, as peers are told it; 0 while nothing.
  [[nodiscard]] std::uint64_t own_fault_word() const noexcept {
    auto* record = board_at<FaultRecord>(board_layout_.record);
    bool const failed = std::atomic_ref(record->failed).load(std::memory_order_acquire) != 0;
    return failed ? fault_word(static_cast<Phase>(record->phase), record->peer) : 0;
  }
  //! For a thread of the network, which has lost a peer: this rank's waits end as if the peer had told so, and near ranks
  //! hear of it from this rank, as far ones do. What far ones are told.
  std::uint64_t note_lost(int peer) noexcept {
    std::uint64_t const word = fault_word(Phase::none, peer);
    auto const note = [&](int at, int from) {
      auto* notices = board_layout_.notices.template in<std::uint64_t>(boards_.base_of(at));
      std::atomic_ref(notices[from]).store(word, std::memory_order_release);
    };
    note(comm_.rank(), peer);
    for (int near : near_ranks(comm_))
      if (near != comm_.rank()) note(near, comm_.rank());
    return word;
  }

  Status move_to_new_arenas(std::span<const int> members) noexcept {
    bool const shared = !comm_.in_process(members);
    auto arena = std::make_shared<comm::Arena<Exec>>(layout_.bytes, Transport::kPlace, shared);
    auto board = std::make_shared<comm::Arena<Exec>>(board_layout_.bytes, comm::Place::board, shared);
    std::int32_t const there = arena->data() != nullptr && board->data() != nullptr ? 1 : 0;
    std::vector<std::int32_t> all(members.size());
    if (Status s = comm_.all_gather(members, &there, all.data(), sizeof(there)); !s.ok()) return s;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] == 0)
        return Error{.code = Errc::out_of_memory,
                     .rank = members[i],
                     .field = "arena bytes allocated",
                     .value = 0,
                     .limit = static_cast<std::int64_t>(layout_.bytes),
                     .hint = "Going on with fewer ranks takes a second arena for a moment: free some memory."};
    auto arenas = comm::SymmetricHeap<Exec>::join(comm_, members, std::move(arena));
    if (!arenas.ok()) return arenas.status();
    auto boards = comm::SymmetricHeap<Exec>::join(comm_, members, std::move(board));
    if (!boards.ok()) return boards.status();
    arenas_ = std::move(*arenas);
    boards_ = std::move(*boards);
    members_ = std::vector<int>(members.begin(), members.end());  // `members` may be a part of it
    absent_ = routing::low_bits(comm_.world());
    for (int member : members) absent_ &= ~(std::uint64_t{1} << member);
    return {};
  }

  //! What fits for both phases, since one config serves both.
  static launch::LaunchLimits limits_of(const EpDispatchCombineConfig& config, int world, int columns) noexcept {
    int const experts = world * config.num_experts_per_rank, topk = config.num_experts_per_token;
    exec::Residency const dispatch = Exec::template residency<Dispatch>(
        [&](int warps) { return Dispatch::shared_bytes(world, columns, experts, topk, warps); });
    exec::Residency const combine =
        Exec::template residency<Combine>([&](int warps) { return Combine::shared_bytes(world, topk, warps); });
    launch::LaunchLimits limits{.residency = dispatch, .most_blocks = kMaxBlocks};
    limits.residency.max_warps = std::min(dispatch.max_warps, combine.max_warps);
    for (int w = 0; w <= exec::Residency::kMaxWarps; ++w)
      limits.residency.blocks[w] = std::min(dispatch.blocks[w], combine.blocks[w]);
    limits.default_warps = Exec::default_warps();
    limits.usual_warps = config.warp_num_per_block > 0 ? config.warp_num_per_block : limits.default_warps;
    return limits;
  }

  [[nodiscard]] FarLayoutOf<Ref> far_layout(int set) const noexcept {
    if constexpr (Ref::kRelays)
      return layout_.relay[set];
    else if constexpr (Ref::kFar)
      return layout_.far[set];
    else
      return {};
  }
  template <class V>
  [[nodiscard]] V* at(comm::Region region) const noexcept {
    return region.in<V>(arenas_.base());
  }
  template <class V>
  [[nodiscard]] V* board_at(comm::Region region) const noexcept {
    return region.in<V>(boards_.base());
  }
  //! Ranks whose rows combine sums first.
  [[nodiscard]] int ranks_per_group() const noexcept {
    if (Ref::kRelays) return layout_.relay[0].nodes.per;
    return config_.reduce_gpu_per_node > 0 ? config_.reduce_gpu_per_node : comm_.gpu_per_node();
  }
  [[nodiscard]] static RowSizes row_sizes(const EpDispatchCombineConfig& config) noexcept {
    auto const hidden = static_cast<std::size_t>(config.hidden_dim);
    return {quant::received_row_bytes<Quant>(hidden), quant::combine_row_bytes<Quant>(hidden), hidden * sizeof(Out)};
  }
  [[nodiscard]] std::size_t traffic(int tokens, std::size_t row_bytes) const noexcept {
    return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(layout_.routes_per_token) * row_bytes;
  }
  [[nodiscard]] FaultPort<Ref> port() const noexcept {
    return {Ref{Transport::ref(at<std::byte*>(layout_.bases), arenas_.base(), comm_, link_->ring())},
            Ref{Transport::ref(at<std::byte*>(layout_.board_bases), boards_.base(), comm_, link_->ring())},
            layout_.gate,
            board_layout_.record,
            board_layout_.notices,
            config_.timeout_ms * 1'000'000,
            absent_};
  }
  [[nodiscard]] Result<launch::LaunchParams> resolve(const launch::LaunchParams& call) const noexcept {
    if (!link_)
      return Error{.code = Errc::fabric_error,
                   .rank = comm_.rank(),
                   .field = "network",
                   .value = 0,
                   .hint = "The last recover() did not bring it up: bring every rank to recover()."};
    auto params = launch::resolve(call, {config_.block_num, config_.warp_num_per_block}, limits_);
    if (params.ok()) return params;
    return of_this_rank(params.error());
  }
  [[nodiscard]] Error of_this_rank(Error error) const noexcept {
    error.rank = comm_.rank();
    return error;
  }
  //! Of a dispatch or combine, which may relay.
  [[nodiscard]] Result<launch::LaunchParams> resolve_phase(const launch::LaunchParams& call) const noexcept {
    auto params = resolve(call);
    if (!params.ok()) return params;
    auto const relays =
        launch::resolve_relays(call.rdma_block_num, config_.rdma_block_num, params->block_num, Ref::kRelays);
    if (!relays.ok()) return of_this_rank(relays.error());
    params->rdma_block_num = *relays;
    return params;
  }
  template <class Kernel>
  Status launch(int set, const exec::LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) noexcept {
    if (Status s = Exec::launch(geometry, kernel, stream); !s.ok()) return s;
    blocks_launched_[set] += static_cast<std::uint32_t>(geometry.blocks);
    return {};
  }

  //! Every signal word starts at first_epoch, the states too, as after a combine: the first dispatch is the epoch after.
  [[nodiscard]] Status initialise() noexcept {
    Status status;
    auto const put = [&](comm::Region region, const auto& values) {
      if (status.ok() && values.size() != 0)
        status = Exec::copy(at<std::byte>(region), values.data(), values.size() * sizeof(values[0]));
    };
    std::vector<std::byte*> bases, board_bases;
    for (int r = 0; r < comm_.world(); ++r) {
      bases.push_back(arenas_.base_of(r));
      board_bases.push_back(boards_.base_of(r));
    }
    put(layout_.bases, bases);
    put(layout_.board_bases, board_bases);
    std::uint64_t const before_first = exec::signal_word(config_.first_epoch, 0);
    for (int i = 0; i < config_.num_buffer_sets; ++i) {
      const SetLayout& set = layout_.sets[i];
      for (comm::Region words : {set.counts, set.expert_counts, set.votes, set.rows_arrived, set.combine_ready})
        put(words, std::vector<std::uint64_t>(words.bytes / sizeof(std::uint64_t), before_first));
      const FarLayout& far = layout_.far[i];
      const RelayLayout& relay = layout_.relay[i];
      for (comm::Region words : {far.told, far.ready, relay.told, relay.arrived, relay.ready})
        put(words, std::vector<std::uint64_t>(words.bytes / sizeof(std::uint64_t), before_first));
      for (comm::Region counters : {set.expert_tally, relay.staged, relay.summed, relay.sent})
        put(counters, std::vector<std::uint32_t>(counters.bytes / sizeof(std::uint32_t), 0));
      SetState state;
      state.epoch = state.combine_sent = config_.first_epoch;
      state.blocks_ended = blocks_launched_[i];
      put(set.state, std::span<const SetState>(&state, 1));
    }
    FaultGate const open;
    put(layout_.gate, std::span<const FaultGate>(&open, 1));
    for (int i = 0; i < 2 * comm_.world(); ++i) board_at<std::uint64_t>(board_layout_.notices)[i] = 0;
    *board_at<FaultRecord>(board_layout_.record) = FaultRecord{};
    return status;
  }

  //! True when every block enqueued so far has ended; a machine whose release() waits needs no count.
  [[nodiscard]] bool wait_idle(std::chrono::milliseconds limit) const noexcept {
    if constexpr (!Exec::kFreeWaits) {
      auto const deadline = std::chrono::steady_clock::now() + limit;
      for (int set = 0; set < config_.num_buffer_sets; ++set) {
        auto& ended = at<SetState>(layout_.sets[set].state)->blocks_ended;
        while (std::atomic_ref(ended).load(std::memory_order_acquire) != blocks_launched_[set]) {
          if (std::chrono::steady_clock::now() >= deadline) return false;
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
      }
    }
    return true;
  }

  comm::Communicator comm_;
  EpDispatchCombineConfig config_;
  Layout layout_;
  BoardLayout board_layout_;
  launch::LaunchLimits limits_;
  comm::SymmetricHeap<Exec> arenas_, boards_;
  std::optional<Link> link_;  // ends before the memory that it reaches
  Options options_;
  comm::HeapBudget::Share heap_;
  std::vector<int> members_;
  std::uint64_t absent_ = 0;  // ranks that are not members, as bits
  std::uint32_t blocks_launched_[kMaxBufferSets] = {};
  bool several_devices_ = false;
};

}  // namespace intra_node

//! @brief The schedule for ranks inside one node: one launch per phase, pushed rows in dispatch, pulled rows in
//! combine.
struct IntraNode {
  static constexpr const char* kName = "IntraNode";
  static constexpr bool kNeedsPeerAccess = true;
  static constexpr bool kNeedsNetwork = false;
  using Half = intra_node::Half;
  template <class Transport, class Exec, class Quant, class Reduce, class Index>
  using Runner = intra_node::Runner<Transport, Exec, Quant, Reduce, Index>;
};

}  // namespace mori_ep::schedule
