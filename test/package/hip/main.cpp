// SPDX-License-Identifier: MIT
// The C++ half of a HIP program: it may call the runtime; the operator is in the HIP half.
#include <cstdio>
#include <string>

#include <hip/hip_runtime_api.h>

std::string create_operator();

int main() {
  int devices = 0;
  hipError_t const asked = hipGetDeviceCount(&devices);
  std::string const said = create_operator();
  std::printf("%d devices (%s); %s\n", devices, hipGetErrorString(asked), said.c_str());
  return (devices > 0) == (said == "ok") ? 0 : 1;
}
