// SPDX-License-Identifier: MIT
// Small worlds, two epochs, many interleavings of the operator's own kernels: no race, no deadlock, exact results; and
// the same exploration finds bugs that are planted in the machine.
#include <cstdio>
#include <string>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/explore_context.hpp"

namespace {

using namespace mori_ep;
using test::ExploreContext;
using test::ExploreExec;
using test::Explorer;
using test::PlantedBugs;
using test::RecordingStream;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, ExploreExec>;

constexpr int kHidden = 4, kTopk = 2, kTokens = 2, kEpochs = 3;

float payload(int epoch, int rank, int token, int h) {
  return static_cast<float>(1000 * epoch + 100 * rank + 10 * token + h);
}
// A token goes to its own rank and the next; token 1 of the last rank names one rank twice.
std::int32_t route(int world, int rank, int token, int k) {
  if (rank == world - 1 && token == 1) return rank;
  return (rank + k) % world;
}

//! What a rank does with a dispatch. `dispatch_only` reads the rows and drops the ticket, so that nothing but the next
//! dispatch itself keeps a source from overtaking the readers.
enum class Pattern { dispatch_only, zero_copy, staged };
constexpr const char* kPatternNames[] = {"dispatch only", "zero-copy combine", "staged combine"};

//! The operator's calls of every rank, recorded once; every play starts from the same memory.
class World {
 public:
  World(int world, int blocks, int warps, std::uint32_t first_epoch, Pattern pattern, bool quiet = false)
      : world_(world), pattern_(pattern), quiet_(quiet) {
    EpDispatchCombineConfig const config{.hidden_dim = kHidden,
                                         .max_num_inp_token_per_rank = kTokens,
                                         .num_experts_per_rank = 1,
                                         .num_experts_per_token = kTopk,
                                         .block_num = blocks,
                                         .warp_num_per_block = warps,
                                         .timeout_ms = 10,
                                         .first_epoch = first_epoch};
    auto const n = static_cast<std::size_t>(world);
    bytes_ = Ep::footprint(config, world).value().bytes;
    for (std::size_t r = 0; r < n; ++r) arenas_.push_back(ExploreExec::allocate(bytes_));
    streams_.resize(n);
    ranks_.resize(n);
    LocalWorld(world)
        .run([&](Communicator& comm) {
          auto const r = static_cast<std::size_t>(comm.rank());
          ranks_[r].ep = std::make_unique<Ep>(Ep::create(comm, config, {arenas_[r], bytes_}).value());
        })
        .or_throw();
    for (auto* arena : arenas_) initial_.emplace_back(arena, arena + bytes_);
    for (int r = 0; r < world; ++r) record(r);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    play(Explorer{}, 0);  // leaves every launch done, as destruction expects
    ranks_.clear();
    for (auto* arena : arenas_) ExploreExec::release(arena, bytes_);
  }

  //! Empty when the interleaving of `seed` is right.
  std::string play(Explorer explorer, std::uint64_t seed) {
    for (std::size_t r = 0; r < arenas_.size(); ++r) {
      std::memcpy(arenas_[r], initial_[r].data(), bytes_);
      std::fill(ranks_[r].y.begin(), ranks_[r].y.end(), -1.0f);
      std::fill(ranks_[r].seen.begin(), ranks_[r].seen.end(), -1.0f);
    }
    std::string problem = explorer.play(streams_, seed);
    steps += explorer.steps();
    if (!problem.empty()) return problem;
    for (int r = 0; r < world_; ++r) {
      auto& rank = ranks_[static_cast<std::size_t>(r)];
      if (Status s = rank.ep->status(); !s.ok()) return s.message();
      for (int e = 0; e < kEpochs; ++e)
        if (std::string wrong = pattern_ == Pattern::dispatch_only ? check_rows(rank, r, e) : check_sums(rank, r, e);
            !wrong.empty())
          return wrong + ", rank " + std::to_string(r) + " epoch " + std::to_string(e);
    }
    return {};
  }

  //! The machine's waits for counts in `rank`'s arena return at once.
  PlantedBugs unwaited_counts(int rank, std::uint32_t first_epoch) const {
    auto const layout = schedule::intra_node::Layout::make(
        ranks_[0].ep->config(), world_, {kHidden * sizeof(float), kHidden * sizeof(float), kHidden * sizeof(float)}, 4);
    PlantedBugs bugs;
    bugs.unwaited_begin = arenas_[static_cast<std::size_t>(rank)] + layout.sets[0].counts.offset;
    bugs.unwaited_end = bugs.unwaited_begin + layout.sets[0].counts.bytes;
    bugs.first_epoch = first_epoch;
    return bugs;
  }

  std::uint64_t steps = 0;

 private:
  struct Rank {
    std::unique_ptr<Ep> ep;
    std::vector<float> x, y, seen, expert;
    std::vector<std::int32_t> ids;
  };

  //! In a quiet world rank 1 brings nothing, so that some wait for counts only.
  int tokens_of(int rank) const { return quiet_ && rank == 1 ? 0 : kTokens; }
  bool goes(int source, int token, int destination) const {
    if (token >= tokens_of(source)) return false;
    for (int k = 0; k < kTopk; ++k)
      if (route(world_, source, token, k) == destination) return true;
    return false;
  }
  std::string check_sums(const Rank& rank, int r, int e) const {
    for (int t = 0; t < tokens_of(r); ++t)
      for (int h = 0; h < kHidden; ++h) {
        float expected = 0;
        for (int d = 0; d < world_; ++d)
          if (goes(r, t, d)) expected += payload(e, r, t, h) * static_cast<float>(d + 1);
        if (rank.y[static_cast<std::size_t>((e * kTokens + t) * kHidden + h)] != expected)
          return "wrong sum of token " + std::to_string(t);
      }
    return {};
  }
  std::string check_rows(const Rank& rank, int r, int e) const {
    auto at = static_cast<std::size_t>(e * world_ * kTokens * kHidden);
    for (int source = 0; source < world_; ++source)
      for (int t = 0; t < kTokens; ++t)
        for (int h = 0; h < kHidden && goes(source, t, r); ++h)
          if (rank.seen[at++] != payload(e, source, t, h)) return "wrong row of token " + std::to_string(t);
    return {};
  }

  void record(int r) {
    auto& rank = ranks_[static_cast<std::size_t>(r)];
    auto& stream = streams_[static_cast<std::size_t>(r)];
    rank.y.resize(kEpochs * kTokens * kHidden);
    rank.seen.resize(static_cast<std::size_t>(kEpochs * world_ * kTokens * kHidden));
    rank.expert.resize(rank.seen.size() / kEpochs);
    for (int e = 0; e < kEpochs; ++e)
      for (int t = 0; t < kTokens; ++t)
        for (int h = 0; h < kHidden; ++h) rank.x.push_back(payload(e, r, t, h));
    for (int t = 0; t < kTokens; ++t)
      for (int k = 0; k < kTopk; ++k) rank.ids.push_back(route(world_, r, t, k));
    for (int e = 0; e < kEpochs; ++e) {
      auto got = rank.ep->dispatch({.input = {rank.x.data() + e * kTokens * kHidden, tokens_of(r), kHidden},
                                    .indices = {rank.ids.data(), tokens_of(r), kTopk}},
                                   stream);
      got.status().or_throw();
      // The expert reads every received row and writes (rank + 1) times it to where combine takes it from.
      auto const rows = got->rows;
      auto const* count = got->recv_count;
      float* seen = rank.seen.data() + e * world_ * kTokens * kHidden;
      float* out = pattern_ == Pattern::staged ? rank.expert.data()
                                               : rank.ep->get_registered_combine_input_buffer(got->ticket).data;
      stream.launches.push_back({{}, [=, writes = pattern_ != Pattern::dispatch_only](ExploreContext& ctx) {
                                   std::int32_t const n = ctx.load(count);
                                   for (int i = 0; i < n * kHidden; ++i) {
                                     seen[i] = ctx.load(rows.data + i);
                                     if (writes) ctx.store(out + i, static_cast<float>(r + 1) * seen[i]);
                                   }
                                 }});
      if (pattern_ == Pattern::dispatch_only) continue;
      rank.ep
          ->combine(std::move(got->ticket),
                    {.input = {out, world_ * kTokens, kHidden},
                     .output = {rank.y.data() + e * kTokens * kHidden, tokens_of(r), kHidden}},
                    stream)
          .or_throw();
    }
  }

  int world_;
  Pattern pattern_;
  bool quiet_;
  std::size_t bytes_ = 0;
  std::vector<std::byte*> arenas_;
  std::vector<std::vector<std::byte>> initial_;
  std::vector<RecordingStream> streams_;
  std::vector<Rank> ranks_;
};

//! How many of the first `seeds` interleavings show the problem; the first one's text in `first`.
int count_problems(World& world, PlantedBugs bugs, int seeds, std::string& first) {
  int found = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    std::string const problem = world.play(Explorer(bugs), static_cast<std::uint64_t>(seed));
    if (!problem.empty() && found++ == 0) first = "seed " + std::to_string(seed) + ": " + problem;
  }
  return found;
}

}  // namespace

TEST_CASE("every explored interleaving of dispatch, expert and combine is exact and free of races", "[exploration]") {
  struct Shape {
    int world, blocks, warps, seeds;
    std::uint32_t first_epoch;
    Pattern pattern;
    bool quiet = false;
    int counted_alone = 64;  // tokens
  };
  using enum Pattern;
  for (Shape const shape :
       {Shape{2, 1, 1, 2000, 0, zero_copy}, Shape{2, 1, 1, 2000, 0, dispatch_only},
        Shape{2, 2, 1, 2000, 0xfffffffeu, zero_copy}, Shape{2, 2, 1, 2000, 0, staged}, Shape{2, 1, 2, 2000, 0, staged},
        Shape{2, 2, 2, 1000, 0, zero_copy}, Shape{3, 1, 1, 2000, 0, zero_copy},
        Shape{3, 1, 1, 2000, 0xfffffffeu, dispatch_only}, Shape{3, 2, 1, 1000, 0xffffffffu, staged},
        Shape{3, 2, 1, 1000, 0, dispatch_only}, Shape{2, 2, 1, 2000, 0, zero_copy, false, 0},
        Shape{2, 2, 2, 500, 0xfffffffeu, staged, false, 0}, Shape{3, 2, 1, 500, 0, dispatch_only, false, 0},
        Shape{2, 1, 1, 2000, 0, zero_copy, true}, Shape{2, 2, 1, 2000, 0, dispatch_only, true},
        Shape{3, 2, 1, 500, 0, dispatch_only, true}, Shape{3, 1, 2, 500, 0, staged, true},
        Shape{2, 2, 1, 1000, 0, dispatch_only, true, 0}}) {
    ExploreContext::kTokensCountedAlone = shape.counted_alone;
    World world(shape.world, shape.blocks, shape.warps, shape.first_epoch, shape.pattern, shape.quiet);
    std::string first;
    int const problems = count_problems(world, {}, shape.seeds, first);
    std::printf("explored world %d, %d x %d, %s%s%s: %d interleavings, %llu steps\n", shape.world, shape.blocks,
                shape.warps, kPatternNames[static_cast<int>(shape.pattern)],
                shape.quiet ? ", a rank without tokens" : "", shape.counted_alone == 0 ? ", counting shared" : "",
                shape.seeds, static_cast<unsigned long long>(world.steps));
    INFO(first);
    CHECK(problems == 0);
  }
}

TEST_CASE("the exploration finds planted bugs", "[exploration]") {
  struct Planted {
    const char* what;
    Pattern pattern;  // in which the bug can show
    PlantedBugs (*plant)(const World&);
  };
  Planted const all[] = {
      {"a dropped acquire", Pattern::zero_copy, [](const World&) { return PlantedBugs{.dropped_acquire = true}; }},
      {"a dropped release", Pattern::zero_copy, [](const World&) { return PlantedBugs{.dropped_release = true}; }},
      {"row stores that nobody flushed", Pattern::staged,
       [](const World&) { return PlantedBugs{.dropped_flush = true}; }},
      {"a dispatch that does not wait for readers of the last epoch", Pattern::dispatch_only,
       [](const World& world) { return world.unwaited_counts(0, 1); }},
  };
  for (int ranks : {2, 3})
    for (Planted const& bug : all) {
      World world(ranks, 1, 1, 0, bug.pattern);
      std::string first;
      int const found = count_problems(world, bug.plant(world), 200, first);
      std::printf("planted, world %d: %s: %d of 200 interleavings, %s\n", ranks, bug.what, found, first.c_str());
      INFO(bug.what);
      CHECK(found > 0);
      CHECK(first.find("race") != std::string::npos);
    }
}
