// SPDX-License-Identifier: MIT
#include "workload/routes.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace mori_ep::workload {
namespace {

//! splitmix64: std::uniform_*_distribution may differ between standard libraries.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed) { state_ = next() ^ (stream * 0xD1B54A32D192ED03u); }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  //! In [0, n), n < 2^32; the bias is below 2^-32 * n.
  std::uint64_t below(std::uint64_t n) { return ((next() >> 32) * n) >> 32; }
  //! In (0, 1).
  double unit() { return (static_cast<double>(next() >> 12) + 0.5) * 0x1p-52; }

 private:
  std::uint64_t state_;
};

bool contains(const std::int32_t* begin, const std::int32_t* end, std::int32_t id) {
  return std::find(begin, end, id) != end;
}

//! Completes ids [filled, topk) with draws that are not there yet.
template <class Draw>
void fill_distinct(std::int32_t* ids, int filled, int topk, Draw&& draw) {
  while (filled < topk) {
    auto const id = static_cast<std::int32_t>(draw());
    if (!contains(ids, ids + filled, id)) ids[filled++] = id;
  }
}

void normalise(const double* scores, float* weights, int topk) {
  double sum = 0;
  for (int k = 0; k < topk; ++k) sum += scores[k];
  for (int k = 0; k < topk; ++k) weights[k] = static_cast<float>(scores[k] / sum);
}

//! The most popular experts first, in an order of the seed, so that they do not all live on rank 0.
std::vector<std::int32_t> popularity_order(int experts, std::uint64_t seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, ~std::uint64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

//! DeepSeek-V3's gate on random scores.
class GroupedGate {
 public:
  GroupedGate(int topk, int experts, int ranks)
      : topk_(static_cast<std::size_t>(topk)), scores_(static_cast<std::size_t>(experts)) {
    std::size_t const wanted = ranks > 1 && experts % ranks == 0 ? static_cast<std::size_t>(ranks) : 8;
    std::size_t const groups = scores_.size() % wanted == 0 ? wanted : 1;
    size_ = scores_.size() / groups;
    chosen_ = std::min(groups, std::max<std::size_t>(4, (topk_ + size_ - 1) / size_));
    group_order_.resize(groups);
    group_score_.resize(groups);
  }

  void route(Random& random, std::int32_t* ids, double* scores) {
    for (double& score : scores_) score = random.unit();
    for (std::size_t g = 0; g < group_order_.size(); ++g) {
      double best = 0, second = 0;
      for (std::size_t e = g * size_; e < (g + 1) * size_; ++e) {
        second = std::max(second, std::min(best, scores_[e]));
        best = std::max(best, scores_[e]);
      }
      group_order_[g] = g;
      group_score_[g] = best + second;
    }
    keep_best(group_order_, chosen_, group_score_);
    candidates_.clear();
    for (std::size_t i = 0; i < chosen_; ++i)
      for (std::size_t e = group_order_[i] * size_; e < (group_order_[i] + 1) * size_; ++e) candidates_.push_back(e);
    keep_best(candidates_, topk_, scores_);
    for (std::size_t k = 0; k < topk_; ++k) {
      ids[k] = static_cast<std::int32_t>(candidates_[k]);
      scores[k] = scores_[candidates_[k]];
    }
  }

 private:
  static void keep_best(std::vector<std::size_t>& which, std::size_t count, const std::vector<double>& by) {
    std::partial_sort(which.begin(), which.begin() + static_cast<std::ptrdiff_t>(count), which.end(),
                      [&](std::size_t a, std::size_t b) { return by[a] != by[b] ? by[a] > by[b] : a < b; });
  }

  std::size_t topk_, size_ = 0, chosen_ = 0;
  std::vector<double> scores_, group_score_;
  std::vector<std::size_t> group_order_, candidates_;
};

//! Reads one line of a log; what is wrong with it is thrown without file and line, which the caller adds.
void append_line(const std::string& line, Routes& routes) {
  nlohmann::json const record = nlohmann::json::parse(line, nullptr, false);
  if (!record.is_object()) throw std::runtime_error("not a JSON object");
  auto const array = [&](const char* key) -> const nlohmann::json& {
    auto const found = record.find(key);
    if (found == record.end()) throw std::runtime_error(std::string("no \"") + key + "\"");
    if (!found->is_array() || found->empty())
      throw std::runtime_error(std::string("\"") + key + "\" is not an array of numbers");
    return *found;
  };
  auto const& ids = array("topk_ids");
  auto const& weights = array("topk_weights");
  if (ids.size() != weights.size())
    throw std::runtime_error(std::to_string(ids.size()) + " topk_ids but " + std::to_string(weights.size()) +
                             " topk_weights");
  if (routes.topk != 0 && ids.size() != static_cast<std::size_t>(routes.topk))
    throw std::runtime_error(std::to_string(ids.size()) + " topk_ids, but the lines before have " +
                             std::to_string(routes.topk));
  routes.topk = static_cast<int>(ids.size());
  for (auto const& id : ids) {
    if (!id.is_number_integer()) throw std::runtime_error("expert id " + id.dump() + " is not an integer");
    auto const value = id.get<std::int64_t>();
    if (value < -1 || value >= INT32_MAX || (routes.experts > 0 && value >= routes.experts))
      throw std::runtime_error(
          "expert id " + id.dump() + " is out of range" +
          (routes.experts > 0 ? ": there are " + std::to_string(routes.experts) + " experts" : ""));
    routes.ids.push_back(static_cast<std::int32_t>(value));
  }
  for (auto const& weight : weights) {
    if (!weight.is_number()) throw std::runtime_error("weight " + weight.dump() + " is not a number");
    routes.weights.push_back(weight.get<float>());
    if (!std::isfinite(routes.weights.back())) throw std::runtime_error("weight " + weight.dump() + " is too large");
  }
}

}  // namespace

Routes read_route_log(const std::string& path, int experts) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  Routes routes;
  routes.experts = experts;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      append_line(line, routes);
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  if (file.bad() || routes.tokens() == 0) throw std::runtime_error(path + ": no routes in it");
  if (experts == 0) routes.experts = *std::max_element(routes.ids.begin(), routes.ids.end()) + 1;
  if (routes.experts == 0) throw std::runtime_error(path + ": every expert id is -1");
  return routes;
}

std::optional<Routing> parse_routing(std::string_view text) noexcept {
  if (text == "uniform") return Routing::uniform;
  if (text == "zipf") return Routing::zipf;
  if (text == "grouped") return Routing::grouped;
  if (text == "one-hot" || text == "one_hot") return Routing::one_hot;
  return std::nullopt;
}

Routes generate_routes(Routing routing, std::int64_t tokens, int topk, int experts, int ranks, std::uint64_t seed) {
  if (tokens < 0) throw std::invalid_argument("tokens is " + std::to_string(tokens) + ": give 0 or more");
  if (topk < 1 || topk > experts)
    throw std::invalid_argument("topk is " + std::to_string(topk) + ": give 1 to " + std::to_string(experts) +
                                ", the number of experts");
  Routes routes;
  routes.topk = topk;
  routes.experts = experts;
  auto const k = static_cast<std::size_t>(topk);
  routes.ids.resize(static_cast<std::size_t>(tokens) * k);
  routes.weights.resize(routes.ids.size());

  auto const order = popularity_order(experts, seed);
  std::vector<std::uint64_t> popularity;  // running sums of 2^20 / i: integers, the same everywhere
  if (routing == Routing::zipf)
    for (std::uint64_t i = 1; i <= order.size(); ++i)
      popularity.push_back((popularity.empty() ? 0 : popularity.back()) + (std::uint64_t{1} << 20) / i + 1);
  GroupedGate gate(topk, experts, ranks);
  std::vector<double> scores(k);

  for (std::int64_t t = 0; t < tokens; ++t) {
    Random random(seed, static_cast<std::uint64_t>(t));
    std::int32_t* const ids = routes.ids.data() + static_cast<std::size_t>(t) * k;
    if (routing == Routing::grouped) {
      gate.route(random, ids, scores.data());
    } else {
      auto const any = [&] { return random.below(static_cast<std::uint64_t>(experts)); };
      auto const popular = [&] {
        auto const at = std::upper_bound(popularity.begin(), popularity.end(), random.below(popularity.back()));
        return order[static_cast<std::size_t>(at - popularity.begin())];
      };
      ids[0] = 0;  // what one_hot starts from
      if (routing == Routing::zipf)
        fill_distinct(ids, 0, topk, popular);
      else
        fill_distinct(ids, routing == Routing::one_hot ? 1 : 0, topk, any);
      for (double& score : scores) score = random.unit();
      std::sort(scores.begin(), scores.end(), std::greater<>());  // the first choice weighs most, as after a gate
    }
    normalise(scores.data(), routes.weights.data() + static_cast<std::size_t>(t) * k, topk);
  }
  return routes;
}

Routes take_tokens(const Routes& routes, std::int64_t tokens) {
  Routes taken;
  taken.topk = routes.topk;
  taken.experts = routes.experts;
  if (routes.ids.empty()) return taken;
  std::size_t const entries = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(routes.topk);
  taken.ids.resize(entries);
  taken.weights.resize(entries);
  for (std::size_t i = 0; i < entries; ++i) {
    taken.ids[i] = routes.ids[i % routes.ids.size()];
    taken.weights[i] = routes.weights[i % routes.ids.size()];
  }
  return taken;
}

Routes slice(const Routes& routes, Shard shard) {
  Routes part;
  part.topk = routes.topk;
  part.experts = routes.experts;
  auto const begin = shard.begin * routes.topk, end = shard.end * routes.topk;
  part.ids.assign(routes.ids.begin() + begin, routes.ids.begin() + end);
  part.weights.assign(routes.weights.begin() + begin, routes.weights.begin() + end);
  return part;
}

}  // namespace mori_ep::workload
