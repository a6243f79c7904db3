// SPDX-License-Identifier: MIT
//! @file The same layer without ranks, dispatch or combine: a plain loop over the original routes in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "moe_layer/expert.hpp"
#include "workload/routes.hpp"

namespace moe_layer {

struct Reference {
  std::vector<double> y;     //!< [tokens, hidden] sum over k of weight * expert(x)
  std::vector<double> size;  //!< [tokens] sum over k of |weight| * norm of expert(x): what rounding errors scale with
};

//! @param x [tokens, hidden], as the rows travel
//! @param progress called now and then by one thread with the part that is done
template <class T>
Reference compute_reference(const ExpertModel& model, const mori_ep::workload::Routes& routes, const std::vector<T>& x,
                            const std::function<void(double)>& progress) {
  auto const hidden = static_cast<std::size_t>(model.hidden), inner = static_cast<std::size_t>(model.intermediate);
  auto const topk = static_cast<std::size_t>(routes.topk);
  Reference reference;
  reference.y.resize(x.size());
  reference.size.resize(static_cast<std::size_t>(routes.tokens()));

  auto const work = [&](mori_ep::workload::Shard tokens, bool reports) {
    std::vector<double> w1(hidden * inner), w3(w1.size()), w2(w1.size()), gate(inner), up(inner), out(hidden);
    for (int expert = 0; expert < routes.experts; ++expert) {
      if (reports) progress(static_cast<double>(expert) / routes.experts);
      for (int h = 0, at = 0; h < model.hidden; ++h)
        for (int i = 0; i < model.intermediate; ++i, ++at) {
          w1[at] = model.weight(expert, ExpertModel::w1, h, i);
          w3[at] = model.weight(expert, ExpertModel::w3, h, i);
          w2[i * hidden + h] = model.weight(expert, ExpertModel::w2, i, h);
        }
      for (auto t = static_cast<std::size_t>(tokens.begin); t < static_cast<std::size_t>(tokens.end); ++t)
        for (std::size_t k = 0; k < topk; ++k) {
          if (routes.ids[t * topk + k] != expert) continue;
          gate.assign(inner, 0);
          up.assign(inner, 0);
          out.assign(hidden, 0);
          for (std::size_t h = 0; h < hidden; ++h) {
            double const value = static_cast<float>(x[t * hidden + h]);
            for (std::size_t i = 0; i < inner; ++i) gate[i] += value * w1[h * inner + i];
            for (std::size_t i = 0; i < inner; ++i) up[i] += value * w3[h * inner + i];
          }
          for (std::size_t i = 0; i < inner; ++i) {
            double const value = gate[i] / (1 + std::exp(-gate[i])) * up[i];
            for (std::size_t h = 0; h < hidden; ++h) out[h] += value * w2[i * hidden + h];
          }
          double const weight = routes.weights[t * topk + k];
          double squares = 0;
          for (std::size_t h = 0; h < hidden; ++h) {
            reference.y[t * hidden + h] += weight * out[h];
            squares += out[h] * out[h];
          }
          reference.size[t] += std::abs(weight) * std::sqrt(squares);
        }
    }
  };
  int const workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker)
    threads.emplace_back(work, mori_ep::workload::shard_of(routes.tokens(), worker, workers), worker == 0);
  for (auto& thread : threads) thread.join();
  return reference;
}

}  // namespace moe_layer
