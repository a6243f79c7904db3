# SPDX-License-Identifier: MIT
# Compiles a file that must not compile and looks for the text it promises (`// expect-error: text`). With -DGOOD the
# same file differs in one line and must compile, so that nothing but that line is what fails.
# Usage: cmake -D CXX=<compiler> -D FLAGS=<flags> -D SOURCE=<file> -D INCLUDE_DIR=<dir> -P expect_error.cmake
cmake_minimum_required(VERSION 3.25)
file(STRINGS ${SOURCE} expected REGEX "^// expect-error: ")
string(REPLACE "// expect-error: " "" expected "${expected}")
if(expected STREQUAL "")
  message(FATAL_ERROR "${SOURCE} has no line '// expect-error: text'.")
endif()

separate_arguments(flags UNIX_COMMAND "${FLAGS}")
set(compile ${CXX} ${flags} -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I${INCLUDE_DIR} ${SOURCE})
execute_process(COMMAND ${compile} -DGOOD RESULT_VARIABLE code ERROR_VARIABLE output)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "The good variant does not compile:\n${output}")
endif()
execute_process(COMMAND ${compile} RESULT_VARIABLE code ERROR_VARIABLE output)
string(FIND "${output}" "${expected}" found)
if(code EQUAL 0)
  message(FATAL_ERROR "It compiles, but must not. Expected: ${expected}")
elseif(found EQUAL -1)
  message(FATAL_ERROR "It fails for another reason. Expected: ${expected}\nThe compiler says:\n${output}")
endif()
message(STATUS "refused: ${expected}")
