# SPDX-License-Identifier: MIT
# Prints how long a translation unit with one operator takes to compile. Prints, never judges: machines differ.
# Usage: cmake -D CXX=<compiler> -D FLAGS=<flags> -D SOURCE=<file> -D INCLUDE_DIR=<dir> -P compile_time.cmake
cmake_minimum_required(VERSION 3.25)
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
foreach(level -O0 -O2)
  string(TIMESTAMP begin "%s%f")
  execute_process(COMMAND ${CXX} ${flags} -std=c++20 ${level} -I${INCLUDE_DIR} -c ${SOURCE} -o /dev/null
                  COMMAND_ERROR_IS_FATAL ANY)
  string(TIMESTAMP end "%s%f")
  math(EXPR ms "(${end} - ${begin}) / 1000")
  message(STATUS "one operator, ${level}: compiled in ${ms} ms (${CXX})")
endforeach()
