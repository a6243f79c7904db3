# SPDX-License-Identifier: MIT
# examples/minimal.cpp is what the README shows, word for word: short, one include of ours, and one plain compiler command away.
# Usage: cmake -D CXX=<compiler> -D FLAGS=<flags> -D SOURCE_DIR=<checkout> -D WORK_DIR=<scratch> -P minimal_example.cmake
cmake_minimum_required(VERSION 3.25)
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
file(READ ${SOURCE_DIR}/examples/minimal.cpp text)
string(REGEX MATCHALL "\n" line_ends "${text}")
list(LENGTH line_ends lines)
string(REGEX MATCHALL "#include \"[^\"]*\"" includes "${text}")
if(lines GREATER_EQUAL 40 OR NOT includes STREQUAL "#include \"mori_ep/mori_ep.hpp\"")
  message(FATAL_ERROR "examples/minimal.cpp: ${lines} lines, includes ${includes}")
endif()
string(FIND "${text}" "#include" begin)
string(SUBSTRING "${text}" ${begin} -1 shown)
file(READ ${SOURCE_DIR}/README.md readme)
string(FIND "${readme}" "${shown}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not show examples/minimal.cpp as it is, from its first #include on.")
endif()

file(MAKE_DIRECTORY ${WORK_DIR})
execute_process(COMMAND ${CXX} ${flags} -std=c++20 -Iinclude -pthread examples/minimal.cpp -o ${WORK_DIR}/minimal
                WORKING_DIRECTORY ${SOURCE_DIR} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/minimal COMMAND_ERROR_IS_FATAL ANY)
