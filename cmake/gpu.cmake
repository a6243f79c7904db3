# SPDX-License-Identifier: MIT
# mori_ep::cuda and mori_ep::hip: what a target with sources in those languages links. They only add what the compiler
# needs, so that they exist on every machine; who uses them enables the language.
add_library(mori_ep_cuda INTERFACE)
add_library(mori_ep::cuda ALIAS mori_ep_cuda)
set_target_properties(mori_ep_cuda PROPERTIES EXPORT_NAME cuda)
target_link_libraries(mori_ep_cuda INTERFACE mori_ep)
# CMake 3.25 does not know that nvcc speaks C++20. Constants of the headers are constexpr functions of the host.
target_compile_options(mori_ep_cuda INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20;--expt-relaxed-constexpr>")

add_library(mori_ep_hip INTERFACE)
add_library(mori_ep::hip ALIAS mori_ep_hip)
set_target_properties(mori_ep_hip PROPERTIES EXPORT_NAME hip)
target_link_libraries(mori_ep_hip INTERFACE mori_ep)
# As an expression it is looked at only where the target is used: here HIP may not be a language.
target_compile_features(mori_ep_hip INTERFACE $<1:hip_std_20>)

set(MORI_EP_GPU "" CACHE STRING "The GPU that bench and device tests (cuda) or the code checks (hip) are built for besides the host, or empty")
set_property(CACHE MORI_EP_GPU PROPERTY STRINGS "" cuda hip)
if(MORI_EP_GPU STREQUAL "cuda")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90-real)
  endif()
  enable_language(CUDA)
elseif(MORI_EP_GPU STREQUAL "hip")
  enable_language(HIP)
elseif(NOT MORI_EP_GPU STREQUAL "")
  message(FATAL_ERROR "MORI_EP_GPU is '${MORI_EP_GPU}': use cuda, hip or nothing.")
endif()
