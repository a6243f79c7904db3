# SPDX-License-Identifier: MIT
# Installs mori_ep and builds this folder's consumer against it, as its user would on a ROCm machine.
# Usage: cmake -D SOURCE_DIR=<checkout> -D WORK_DIR=<scratch> -D GENERATOR=<generator> -D MAKE_PROGRAM=<program>
#              -D TOOLCHAIN=<toolchain file, or empty on a ROCm machine> -P consume.cmake
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -D CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM})
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${configure} -S ${SOURCE_DIR} -B ${WORK_DIR}/library -D MORI_EP_BUILD_TESTS=OFF
                -D MORI_EP_BUILD_BENCH=OFF -D MORI_EP_BUILD_EXAMPLES=OFF COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK_DIR}/library --prefix ${WORK_DIR}/prefix
                COMMAND_ERROR_IS_FATAL ANY)
if(TOOLCHAIN)
  set(configure ${configure} -D CMAKE_TOOLCHAIN_FILE=${TOOLCHAIN} -D CMAKE_HIP_ARCHITECTURES=gfx942)
endif()
execute_process(COMMAND ${configure} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/consumer
                -D mori_ep_ROOT=${WORK_DIR}/prefix COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/consumer/consumer COMMAND_ERROR_IS_FATAL ANY)
