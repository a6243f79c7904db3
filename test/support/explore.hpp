// SPDX-License-Identifier: MIT
//! @file A machine that runs kernels one visible step at a time, in an order drawn from a seed, and checks every
//! access.
//!
//! Each warp of each rank is a fibre. Before every context call the scheduler may switch to any other fibre that can
//! run, so an execution is a sequentially consistent interleaving; vector clocks tell whether two accesses were ordered
//! by a signal or only by luck. A released clock covers row stores only when they were flushed, as streaming stores
//! demand.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/host/rows.hpp"

namespace mori_ep::test {

//! @brief Faults planted in the machine, to prove that an exploration would find them in the protocol.
struct PlantedBugs {
  bool dropped_acquire = false;  //!< waits see the word but acquire nothing
  bool dropped_release = false;  //!< signals write the word but release nothing
  bool dropped_flush = false;    //!< row stores are never flushed
  //! Waits on words in [begin, end) for any epoch but the first do not wait: stale counts are taken for fresh ones.
  const std::byte *unwaited_begin = nullptr, *unwaited_end = nullptr;
  std::uint32_t first_epoch = 0;
};

class Explorer;

//! @brief The kernel context of one fibre (exec/concepts.hpp says what each call promises).
class ExploreContext {
 public:
  static constexpr int lanes = 1;
  static inline int kTokensCountedAlone = 64;
  static constexpr int moving_warps(int warps) { return warps; }
  static constexpr int telling_warps(int warps) { return warps > 1 ? warps - 1 : 1; }
  static constexpr int row_parts(std::size_t) { return 1; }
  static constexpr int most_row_parts(std::size_t) { return 2; }
  static constexpr int warps_per_sum(std::size_t) { return 1; }
  ExploreContext(Explorer& machine, int fibre, int block, int blocks, int warp, int warps, std::byte* scratch)
      : machine_(&machine),
        fibre_(fibre),
        block_(block),
        blocks_(blocks),
        warp_(warp),
        warps_(warps),
        scratch_(scratch) {}

  [[nodiscard]] int lane() const { return 0; }
  [[nodiscard]] int warp() const { return warp_; }
  [[nodiscard]] int warps() const { return warps_; }
  [[nodiscard]] int block() const { return block_; }
  [[nodiscard]] int blocks() const { return blocks_; }

  void warp_sync() {}
  inline void block_sync();
  bool arrive(std::uint32_t* counter) { return arrive(counter, 1, static_cast<std::uint32_t>(blocks_)); }
  inline bool arrive(std::uint32_t* counter, std::uint32_t pieces, std::uint32_t all);
  inline void tally(std::uint32_t* word, std::uint32_t value);
  std::uint32_t draw(std::uint32_t* word) {
    tally(word, 1);
    return *word - 1;
  }
  template <class T>
  T* shared(std::size_t count) {
    used_ = (used_ + 15) / 16 * 16;
    auto* at = reinterpret_cast<T*>(scratch_ + used_);
    used_ += count * sizeof(T);
    return at;
  }
  void shared_add(std::uint32_t* word, std::uint32_t value) { *word += value; }
  template <class T>
  T load(const T* p);
  template <class T>
  void store(T* p, std::type_identity_t<T> value);
  template <class T, class Piece>
  void pack(T* to, std::int32_t n, std::int32_t words, Piece&& piece) {
    for (std::int32_t i = 0; i < n; ++i, to += words) copy(to, piece(i), static_cast<std::size_t>(words) * sizeof(T));
  }
  [[nodiscard]] std::uint32_t broadcast(std::uint32_t value) const { return value; }
  [[nodiscard]] std::uint64_t ballot(bool vote) const { return vote ? 1 : 0; }
  void warp_or(std::uint32_t* word, std::uint32_t bits) const { *word |= bits; }
  template <class Place>
  void multicast_row(const std::byte* src, std::byte* const* dst, Place&& place, std::size_t bytes, int part,
                     int parts);
  template <Element T, bool Weighted>
  void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst, std::size_t elements,
                int part, int parts);
  template <Element T>
  void round_rows(const std::byte* const* srcs, int n, std::byte* dst, std::size_t elements, int part, int parts);
  template <CodedRowType R, class Place>
  void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales, Place&& place,
                  std::size_t elements, int part, int parts);
  template <CodedRowType R, bool Weighted>
  void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                   std::byte* dst, std::size_t elements, int part, int parts);
  template <Element T, bool Weighted>
  void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                   std::byte* dst, std::size_t elements, int part, int parts);
  inline void zero_row(std::byte* dst, std::size_t bytes, int part, int parts);
  void prefetch_row(const std::byte*, std::size_t, int, int) {}
  inline void flush_stores();
  inline void signal(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload);
  inline void signal_after_launch(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload);
  inline void post(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload);
  inline void launch_ends(std::uint32_t* blocks);
  inline exec::WaitResult wait(std::uint64_t* word, std::uint32_t epoch, const exec::WaitLimits& limits,
                               exec::WaitOrder order);
  inline bool claim(std::uint32_t* flag);
  template <class T>
  T peek(const T* p);
  inline std::uint32_t glance(const std::uint32_t* p);
  template <class T>
  void publish(T* p, std::type_identity_t<T> value);

 private:
  inline void copy(void* to, const void* from, std::size_t bytes);

  Explorer* machine_;
  int fibre_, block_, blocks_, warp_, warps_;
  std::byte* scratch_;
  std::size_t used_ = 0;
};

//! @brief One piece of a stream's work: a kernel, or a host function seen as a kernel of one warp.
struct RecordedLaunch {
  exec::LaunchGeometry geometry;
  std::function<void(ExploreContext&)> kernel;
};

//! @brief A stream that records instead of running.
class RecordingStream {
 public:
  std::vector<RecordedLaunch> launches;
};

//! @brief The machine as an exec policy: an operator instantiated with it enqueues into RecordingStreams.
struct ExploreExec {
  static constexpr const char* kName = "explore";
  using Stream = RecordingStream;
  class StreamRef {
   public:
    StreamRef(Stream& stream) : stream_(&stream) {}
    [[nodiscard]] Stream& get() const { return *stream_; }

   private:
    Stream* stream_;
  };
  static constexpr bool kFreeWaits = false;
  template <class Kernel>
  static Status launch(const exec::LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) {
    stream.get().launches.push_back({geometry, [kernel](ExploreContext& ctx) { kernel(ctx); }});
    return {};
  }
  static Status synchronize(StreamRef) { return {}; }
  static int device_count() { return 1; }
  static Status use_device(int) { return {}; }
  static bool capturing() { return false; }
  static void drain() {}
  static std::uint64_t device() { return 0; }
  static bool host_reaches(const void*) { return true; }
  static exec::Dmabuf dmabuf(const void*, std::size_t) { return {}; }
  static Status share_memory() { return {}; }
  template <class Kernel, class SharedBytes>
  static exec::Residency residency(SharedBytes&&) {
    exec::Residency r{.max_warps = 8};
    for (int warps = 1; warps <= r.max_warps; ++warps) r.blocks[warps] = 8;
    return r;
  }
  static int default_blocks(int, int) { return 1; }
  static int default_warps() { return 1; }
  static std::byte* allocate_board(std::size_t bytes) { return allocate(bytes); }
  static void release_board(std::byte* memory, std::size_t bytes) { release(memory, bytes); }
  static std::byte* allocate(std::size_t bytes) {
    return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  }
  static void release(std::byte* memory, std::size_t) { std::free(memory); }
  template <class Kernel>
  static Status prepare() {
    return {};
  }
  static int ordinal() { return 0; }
  static std::uint64_t reachable() { return ~std::uint64_t{0}; }
  static Status copy(void* dst, const void* src, std::size_t bytes) {
    std::memcpy(dst, src, bytes);
    return {};
  }
};

//! @brief Plays recorded streams, one per rank, in one interleaving per seed.
class Explorer {
 public:
  explicit Explorer(PlantedBugs bugs = {}) : bugs_(bugs) {}

  //! @brief Plays one interleaving.
  //! @return what is wrong with it: a race, a deadlock; empty when nothing is.
  std::string play(std::vector<RecordingStream>& streams, std::uint64_t seed) {
    random_ = seed * 0x9e3779b97f4a7c15ull + 0x243f6a8885a308d3ull;
    problem_.clear();
    shadow_.clear();
    sync_.clear();
    steps_ = 0;
    ranks_.clear();
    ranks_.resize(streams.size());
    fibres_.clear();
    for (std::size_t r = 0; r < streams.size(); ++r) ranks_[r].stream = &streams[r];
    for (auto& rank : ranks_)
      for (auto& launch : rank.stream->launches)
        rank.width = std::max(rank.width, launch.geometry.blocks * launch.geometry.warps);
    int total = 0;
    for (auto& rank : ranks_) {
      rank.first = total;
      total += rank.width;
    }
    fibres_.resize(static_cast<std::size_t>(total));
    for (auto& fibre : fibres_) fibre.clock.assign(2 * fibres_.size(), 0);
    for (std::size_t i = 0; i < fibres_.size(); ++i) fibres_[i].clock[i] = 1;
    // Half of the seeds walk at random, half give each fibre a priority and change a few of them on the way: the first
    // finds what many switches show, the second what few well-placed ones do.
    by_priority_ = (seed & 1) != 0;
    for (auto& fibre : fibres_) fibre.priority = draw();
    for (auto& rank : ranks_) start_launch(rank);
    while (problem_.empty()) {
      if (!run_one()) break;
    }
    return problem_;
  }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

 private:
  friend class ExploreContext;
  using Clock = std::vector<std::uint32_t>;

  struct Fibre {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    std::function<void()> body;
    std::function<bool()> ready;  // empty: can run
    bool alive = false;
    int block = 0;
    bool block_ended = false;  // some warp of its block has counted the block out
    std::uint64_t priority = 0;
    Clock at_launch;               // the clock when its launch began
    Clock clock;                   // what this fibre knows: [normal of each fibre | flushed row stores of each fibre]
    std::uint32_t row_stores = 1;  // its own clock of row stores, flushed or not
  };
  struct Rank {
    RecordingStream* stream = nullptr;
    std::size_t next = 0;
    int first = 0, width = 0, running = 0;
    int at_barrier[8] = {};
    std::map<int, Clock> barrier_clock[8];  // by the barrier's turn
    std::vector<std::unique_ptr<std::byte[]>> scratch;
  };
  struct Access {
    std::size_t component = 0;  // of the writer's clock
    std::uint32_t time = 0;
    bool atomic = false;
  };
  struct Granule {
    Access write;
    std::map<std::size_t, Access> reads;
  };

  static constexpr std::size_t kGranule = 4;
  static constexpr std::size_t kStackBytes = 64 * 1024;

  std::uint64_t draw() {
    random_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = random_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // ---- fibres

  static void enter(unsigned low, unsigned high) {
    auto* self = reinterpret_cast<Explorer*>((std::uintptr_t{high} << 32) | low);
    Fibre& fibre = self->fibres_[static_cast<std::size_t>(self->current_)];
    fibre.body();
    fibre.alive = false;
    swapcontext(&fibre.context, &self->main_);
  }

  void start_launch(Rank& rank) {
    if (rank.next == rank.stream->launches.size()) return;
    const RecordedLaunch& launch = rank.stream->launches[rank.next++];
    // A launch begins after the one before has ended: all its fibres know what all of the rank's fibres did.
    Clock joined(2 * fibres_.size(), 0);
    for (int i = rank.first; i < rank.first + rank.width; ++i) {
      Fibre& f = fibres_[static_cast<std::size_t>(i)];
      f.clock[fibres_.size() + static_cast<std::size_t>(i)] = f.row_stores++;
      join(joined, f.clock);
    }
    rank.running = launch.geometry.blocks * launch.geometry.warps;
    rank.scratch.clear();
    for (int b = 0; b < launch.geometry.blocks; ++b)
      rank.scratch.emplace_back(new std::byte[launch.geometry.shared_bytes + 256]);
    for (int i = 0; i < rank.running; ++i) {
      int const id = rank.first + i;
      Fibre& fibre = fibres_[static_cast<std::size_t>(id)];
      join(fibre.clock, joined);
      fibre.at_launch = fibre.clock;
      tick(id);
      int const warps = launch.geometry.warps, block = i / warps;
      auto* scratch = rank.scratch[static_cast<std::size_t>(block)].get();
      fibre.body = [this, &launch, id, i, warps, block, scratch] {
        ExploreContext ctx(*this, id, block, launch.geometry.blocks, i % warps, warps, scratch);
        launch.kernel(ctx);
      };
      fibre.ready = nullptr;
      fibre.alive = true;
      fibre.block = block;
      fibre.block_ended = false;
      if (!fibre.stack) fibre.stack.reset(new std::byte[kStackBytes]);
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = fibre.stack.get();
      fibre.context.uc_stack.ss_size = kStackBytes;
      fibre.context.uc_link = nullptr;
      auto const self = reinterpret_cast<std::uintptr_t>(this);
      makecontext(&fibre.context, reinterpret_cast<void (*)()>(&Explorer::enter), 2, static_cast<unsigned>(self),
                  static_cast<unsigned>(self >> 32));
    }
  }

  // Runs one fibre up to its next step. False when all are done or none can run.
  bool run_one() {
    std::vector<int> runnable;
    bool any = false;
    for (std::size_t i = 0; i < fibres_.size(); ++i) {
      if (!fibres_[i].alive) continue;
      any = true;
      if (!fibres_[i].ready || fibres_[i].ready()) runnable.push_back(static_cast<int>(i));
    }
    if (!any) return false;
    if (runnable.empty()) {
      problem_ = "deadlock: every fibre waits";
      return false;
    }
    if (by_priority_ && draw() % 64 == 0) fibres_[draw() % fibres_.size()].priority = draw();
    current_ = runnable[draw() % runnable.size()];
    if (by_priority_)
      current_ = *std::max_element(runnable.begin(), runnable.end(), [this](int a, int b) {
        return fibres_[static_cast<std::size_t>(a)].priority < fibres_[static_cast<std::size_t>(b)].priority;
      });
    Fibre& fibre = fibres_[static_cast<std::size_t>(current_)];
    fibre.ready = nullptr;
    ++steps_;
    swapcontext(&main_, &fibre.context);
    if (!fibre.alive)
      for (auto& rank : ranks_)
        if (current_ >= rank.first && current_ < rank.first + rank.width && --rank.running == 0) start_launch(rank);
    return true;
  }

  void step(int id, std::function<bool()> ready = nullptr) {
    Fibre& fibre = fibres_[static_cast<std::size_t>(id)];
    if (fibre.block_ended && problem_.empty()) problem_ = "a warp worked on after its block had counted itself out";
    fibre.ready = std::move(ready);
    swapcontext(&fibre.context, &main_);
  }

  // ---- clocks

  static void join(Clock& into, const Clock& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  Clock& clock(int id) { return fibres_[static_cast<std::size_t>(id)].clock; }
  void tick(int id) { ++clock(id)[static_cast<std::size_t>(id)]; }
  void acquire(int id, const void* word) {
    if (auto it = sync_.find(word); it != sync_.end()) join(clock(id), it->second);
  }
  void release(int id, const void* word, bool keep) {
    Clock& at = sync_[word];
    at.resize(2 * fibres_.size());
    if (!keep) std::fill(at.begin(), at.end(), 0);
    join(at, clock(id));
    tick(id);
  }

  bool ordered(int id, const Access& access) {
    std::size_t const own = static_cast<std::size_t>(id), count = fibres_.size();
    if (access.component == own || access.component == own + count) return true;
    return access.time <= clock(id)[access.component];
  }
  void race(const char* what, const void* p) {
    if (problem_.empty())
      problem_ = std::string("race: ") + what + " at " + std::to_string(reinterpret_cast<std::uintptr_t>(p));
  }

  void touch(int id, const void* p, std::size_t bytes, bool write, bool atomic = false, bool row_store = false) {
    auto const first = reinterpret_cast<std::uintptr_t>(p) / kGranule;
    auto const last = (reinterpret_cast<std::uintptr_t>(p) + bytes + kGranule - 1) / kGranule;
    Fibre& fibre = fibres_[static_cast<std::size_t>(id)];
    std::size_t const component = static_cast<std::size_t>(id) + (row_store ? fibres_.size() : 0);
    Access const mine{component, row_store ? fibre.row_stores : fibre.clock[static_cast<std::size_t>(id)], atomic};
    for (auto g = first; g < last; ++g) {
      Granule& granule = shadow_[g];
      if (granule.write.time != 0 && !(atomic && granule.write.atomic) && !ordered(id, granule.write))
        race(write ? "write after unordered write" : "read of an unordered write", p);
      if (write)
        for (auto& [reader, access] : granule.reads)
          if (!(atomic && access.atomic) && !ordered(id, access)) race("write after unordered read", p);
      if (write) {
        granule.write = mine;
        granule.reads.clear();
      } else {
        granule.reads[component] = mine;
      }
    }
  }

  PlantedBugs bugs_;
  std::vector<Fibre> fibres_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::uintptr_t, Granule> shadow_;
  std::unordered_map<const void*, Clock> sync_;
  ucontext_t main_{};
  int current_ = 0;
  bool by_priority_ = false;
  std::uint64_t random_ = 0, steps_ = 0;
  std::string problem_;
};

}  // namespace mori_ep::test
