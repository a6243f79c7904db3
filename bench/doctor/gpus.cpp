// SPDX-License-Identifier: MIT
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "doctor/checks.hpp"

namespace ep_bench::doctor_checks {
namespace {

//! The driver's device file, empty where there is no driver.
std::string driver_file(const std::string& root) {
  std::error_code error;
  for (const char* file : {"/dev/nvidiactl", "/dev/kfd"})
    if (std::filesystem::exists(root + file, error)) return file;
  return "";
}

Check check_presence(const std::string& root, const GpuSurvey& survey) {
  auto const driver = driver_file(root);
  if (survey.built_for.empty()) {
    std::string const found = "this ep_bench is not built for GPUs";
    if (driver.empty()) return {"gpu", Verdict::pass, found + ", and there is no GPU driver", ""};
    return {"gpu", Verdict::warn, found + ", and there is a driver (" + driver + ")",
            driver == "/dev/kfd" ? "Link mori_ep::hip in your project (README, HIP): ep_bench has no HIP form."
                                 : "Configure with -DMORI_EP_GPU=cuda (it needs nvcc) and build again."};
  }
  if (survey.devices.empty())
    return {"gpu", Verdict::warn,
            "no device: " + (survey.trouble.empty() ? std::string("none is visible") : survey.trouble),
            "Run where there is a GPU with its driver, give the container its devices (docker run --gpus all), and see "
            "what CUDA_VISIBLE_DEVICES hides."};
  Check check{"gpu", Verdict::pass, "", ""};
  // Runs of equal devices in one piece.
  for (std::size_t i = 0; i < survey.devices.size();) {
    auto const& device = survey.devices[i];
    std::size_t end = i + 1;
    while (end < survey.devices.size() && survey.devices[end].name == device.name &&
           survey.devices[end].memory_bytes == device.memory_bytes)
      ++end;
    check.found += (check.found.empty() ? "" : "; ") + std::to_string(i) +
                   (end > i + 1 ? "-" + std::to_string(end - 1) : "") + " " + device.name + ", " +
                   size_text(device.memory_bytes) + (end > i + 1 ? " each" : "");
    i = end;
  }
  return check;
}

Check check_peers(const GpuSurvey& survey) {
  std::string apart;
  for (std::size_t a = 0; a < survey.devices.size(); ++a)
    for (std::size_t b = 0; b < survey.devices.size(); ++b)
      if (!survey.devices[a].reaches[b])
        apart += (apart.empty() ? "" : ", ") + std::to_string(a) + "->" + std::to_string(b);
  if (apart.empty()) return {"gpu peers", Verdict::pass, "every device reaches every other's memory", ""};
  return {
      "gpu peers", Verdict::warn, "no peer access: " + apart,
      "Keep a node's ranks on devices that reach each other (ep_bench run --devices, CUDA_VISIBLE_DEVICES); nvidia-smi "
      "topo -p2p rw shows what stands between them."};
}

Check check_queues(const GpuSurvey& survey, int world, const Lookup& lookup) {
  auto const said = [&](const char* variable) {
    const char* const text = lookup(variable);
    return std::string(text == nullptr ? "" : text);
  };
  std::string const queues = said("CUDA_DEVICE_MAX_CONNECTIONS"), loading = said("CUDA_MODULE_LOADING");
  Check check{"gpu queues", Verdict::pass,
              std::to_string(world) + " ranks share " + std::to_string(survey.devices.size()) +
                  (survey.devices.size() == 1 ? " device" : " devices") + "; CUDA_DEVICE_MAX_CONNECTIONS is " +
                  (queues.empty() ? "not set" : '"' + queues + '"') + ", CUDA_MODULE_LOADING " +
                  (loading.empty() ? "not set" : '"' + loading + '"'),
              ""};
  if (queues != "32" || loading != "EAGER") {
    check.verdict = Verdict::warn;
    check.cure =
        "Ranks that share a device wait for each other there: set CUDA_DEVICE_MAX_CONNECTIONS=32 and "
        "CUDA_MODULE_LOADING=EAGER before the first call of the runtime. ep_bench run does it itself.";
  }
  return check;
}

}  // namespace

std::vector<Check> check_gpus(const std::string& root, const GpuSurvey& survey, int world, const Lookup& lookup) {
  std::vector<Check> checks = {check_presence(root, survey)};
  if (survey.devices.size() > 1) checks.push_back(check_peers(survey));
  if (survey.built_for == "cuda" && !survey.devices.empty() && static_cast<std::size_t>(world) > survey.devices.size())
    checks.push_back(check_queues(survey, world, lookup));
  return checks;
}

}  // namespace ep_bench::doctor_checks
