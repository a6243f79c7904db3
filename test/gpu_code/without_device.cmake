# SPDX-License-Identifier: MIT
# Without a GPU, create() must fail with an error that says so, the same on both ranks.
# Usage: cmake -D PROGRAM=<without_device> -P without_device.cmake
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code TIMEOUT 60)
message("${output}exit code ${code}")
if(output MATCHES "There is a GPU")
  return()
endif()
set(error "mori_ep: rank 0: device error in create: visible GPUs is 0, limit 1\\. [^\n]*Check its driver[^\n]*use exec::Host\\.")
if(NOT code STREQUAL "1" OR NOT output MATCHES "^rank 0: ${error}\nrank 1: ${error}\n$")
  message(FATAL_ERROR "That is not the error of a machine without a GPU.")
endif()
