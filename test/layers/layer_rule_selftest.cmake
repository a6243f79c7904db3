# SPDX-License-Identifier: MIT
# Plants violations in a copy of the headers and expects layer_rule.cmake to name each of them.
# Usage: cmake -D INCLUDE_DIR=<folder that holds mori_ep/> -D WORK_DIR=<scratch> -P layer_rule_selftest.cmake
cmake_minimum_required(VERSION 3.25)

function(expect_caught file line text)
  file(REMOVE_RECURSE ${WORK_DIR})
  file(COPY ${INCLUDE_DIR}/mori_ep DESTINATION ${WORK_DIR})
  file(APPEND ${WORK_DIR}/mori_ep/${file} "${line}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -D INCLUDE_DIR=${WORK_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/layer_rule.cmake
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps its messages
  string(FIND "${output}" "${text}" found)
  if(code EQUAL 0 OR found EQUAL -1)
    message(FATAL_ERROR "Not caught: '${line}' in ${file}. Expected '${text}' in:\n${output}")
  endif()
  message(STATUS "caught: ${line} in ${file}")
endfunction()

expect_caught(numeric/bf16.hpp "#include \"mori_ep/schedule/config.hpp\"" "numeric/bf16.hpp includes schedule/config.hpp")
expect_caught(error.hpp "#include \"mori_ep/exec/attributes.hpp\"" "error.hpp includes exec/attributes.hpp")
expect_caught(env.hpp "#include \"mori_ep/comm/communicator.hpp\"" "env.hpp includes comm/communicator.hpp")
expect_caught(transport/xgmi.hpp "  # include <mori_ep/mori_ep.hpp>" "transport/xgmi.hpp includes mori_ep.hpp")
expect_caught(exec/concepts.hpp "#include \"../schedule/config.hpp\"" "own headers are included as \"mori_ep/...\"")
expect_caught(helpers/x.hpp "#pragma once" "'helpers' is in no layer")
file(REMOVE_RECURSE ${WORK_DIR})
