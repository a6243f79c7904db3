# SPDX-License-Identifier: MIT
# HIP on Debian 12 without ROCm: clang-22 with Debian's HIP 5.2.3 headers, runtime and device libraries. For compiling;
# that release of the runtime is older than most of the GPUs. A ROCm installation needs none of this.
#   apt-get install clang-22 clang-tools-22 lld-22 llvm-22 libamdhip64-dev rocm-device-libs
#   cmake -S . -B build/hip -D CMAKE_TOOLCHAIN_FILE=cmake/debian_hip/toolchain.cmake -D MORI_EP_GPU=hip
if(NOT MORI_EP_DEBIAN_ROCM)
  set(MORI_EP_DEBIAN_ROCM ${CMAKE_BINARY_DIR}/debian_rocm)
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MORI_EP_DEBIAN_ROCM)

# What CMake looks for in a ROCm installation.
if(NOT EXISTS ${MORI_EP_DEBIAN_ROCM}/complete)
  execute_process(COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/device_library.sh ${MORI_EP_DEBIAN_ROCM}/amdgcn/bitcode
                  COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${MORI_EP_DEBIAN_ROCM}/lib/cmake/hip-lang/hip-lang-config.cmake [[
if(NOT TARGET hip-lang::device)
  add_library(hip-lang::device INTERFACE IMPORTED)
  set_target_properties(hip-lang::device PROPERTIES INTERFACE_LINK_LIBRARIES amdhip64)
endif()
set(_CMAKE_HIP_DEVICE_RUNTIME_TARGET hip-lang::device)
]])
  file(WRITE ${MORI_EP_DEBIAN_ROCM}/lib/cmake/hip/hip-config.cmake [[
if(NOT TARGET hip::host)
  add_library(hip::host INTERFACE IMPORTED)
  set_target_properties(hip::host PROPERTIES INTERFACE_LINK_LIBRARIES amdhip64
                        INTERFACE_COMPILE_DEFINITIONS __HIP_PLATFORM_AMD__=1)
endif()
]])
  file(TOUCH ${MORI_EP_DEBIAN_ROCM}/complete)
endif()

list(PREPEND CMAKE_PREFIX_PATH ${MORI_EP_DEBIAN_ROCM})
set(CMAKE_HIP_COMPILER /usr/bin/clang++-22)
set(CMAKE_HIP_COMPILER_ROCM_ROOT ${MORI_EP_DEBIAN_ROCM})
if(NOT CMAKE_HIP_ARCHITECTURES)
  set(CMAKE_HIP_ARCHITECTURES gfx90a gfx942 gfx950)
endif()
# Debian's device libraries know code objects up to version 5.
string(CONCAT CMAKE_HIP_FLAGS_INIT "--rocm-device-lib-path=${MORI_EP_DEBIAN_ROCM}/amdgcn/bitcode "
       "-isystem ${CMAKE_CURRENT_LIST_DIR}/include -mcode-object-version=5")
