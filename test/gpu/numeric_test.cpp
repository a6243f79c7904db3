// SPDX-License-Identifier: MIT
// The formats of a byte and less, computed by the device, against the conversions of CUDA's own headers there: every fp32.
#include "support/catch.hpp"
#include "support/machine.hpp"

#if !defined(__HIP__)

#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "mori_ep/numeric/e8m0.hpp"
#include "mori_ep/numeric/fp4.hpp"
#include "mori_ep/numeric/fp8.hpp"

namespace mori_ep::test {

namespace {

enum Compared { kE4m3, kE5m2, kE2m1, kE8m0, kFormats };

__global__ void compare_all(unsigned* different) {
  std::uint64_t const stride = std::uint64_t{gridDim.x} * blockDim.x;
  unsigned wrong[kFormats] = {};
  for (std::uint64_t bits = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; bits >> 32 == 0; bits += stride) {
    float const value = __uint_as_float(static_cast<unsigned>(bits));
    wrong[kE4m3] += __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3) != fp8_e4m3(value).bits;
    wrong[kE5m2] += __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2) != fp8_e5m2(value).bits;
    wrong[kE2m1] += __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest) != fp4x2_e2m1(value, 0.0f).bits;
    wrong[kE8m0] += __nv_cvt_float_to_e8m0(fabsf(value), __NV_SATFINITE, cudaRoundPosInf) != e8m0::at_least(value).bits;
  }
  for (int format = 0; format < kFormats; ++format)
    if (wrong[format] != 0) atomicAdd(different + format, wrong[format]);
}

}  // namespace

TEST_CASE("every fp32 becomes the code that CUDA's conversions give") {
  Vector<unsigned> different(kFormats, 0u);
  Stream stream;
  compare_all<<<1024, 256, 0, stream.handle()>>>(different.data());
  expect_success(cudaGetLastError(), "comparing");
  stream.synchronize();
  CHECK(different[kE4m3] == 0);
  CHECK(different[kE5m2] == 0);
  CHECK(different[kE2m1] == 0);
  CHECK(different[kE8m0] == 0);
}

}  // namespace mori_ep::test

#endif
