// SPDX-License-Identifier: MIT
#include <string>

#include "doctor/checks.hpp"

namespace ep_bench::doctor_checks {

const char* name(Verdict verdict) {
  return verdict == Verdict::pass ? "PASS" : verdict == Verdict::warn ? "WARN" : "FAIL";
}

Variables read_variables(const Lookup& lookup, const char* const* entries) {
  using mori_ep::EnvironmentStanding;
  Variables all;
  int set = 0;
  for (auto const& variable : mori_ep::kEnvironmentTable) {
    VariableRow row{.variable = &variable, .value = ""};
    const char* const text = lookup(variable.name);
    row.set = text != nullptr && *text != '\0';
    if (variable.read != nullptr) {
      set += row.set ? 1 : 0;
      auto const status = all.environment.take(variable, text);
      row.refused = !status.ok();
      row.value = row.refused ? text : variable.show(variable, all.environment);
      std::string const said = std::string(variable.name) + " is \"" + (row.set ? text : "") + '"';
      if (row.refused) {
        auto const limit = status.error().limit;
        all.checks.push_back({"environment", Verdict::fail,
                              said + (limit == mori_ep::Error::kNoLimit ? "" : ", limit " + std::to_string(limit)),
                              variable.allowed});
      } else if (row.set && variable.standing == EnvironmentStanding::planned) {
        all.checks.push_back({"environment", Verdict::warn,
                              said + ", and nothing in this version acts on it yet (" + variable.where + ")",
                              "Unset it, or count on nothing from it."});
      }
    }
    all.rows.push_back(std::move(row));
  }
  for (auto const& unknown : mori_ep::unknown_variables(entries))
    all.checks.push_back(
        {"environment", Verdict::warn, unknown.name + " is set, and mori_ep has no variable of that name",
         unknown.nearest != nullptr ? "If " + std::string(unknown.nearest) + " is meant, write that."
                                    : "Unset it if it was meant for mori_ep: the table has all the names."});
  if (all.checks.empty())
    all.checks.push_back({"environment", Verdict::pass,
                          set == 0 ? "no variable is set: every default is in force"
                                   : "every variable that is set can be read: " + std::to_string(set),
                          ""});
  return all;
}

}  // namespace ep_bench::doctor_checks
