# SPDX-License-Identifier: MIT
# Every static_assert text that a user can meet has a file here that provokes it.
# Usage: cmake -D INCLUDE_DIR=<folder that holds mori_ep/> -P coverage.cmake
cmake_minimum_required(VERSION 3.25)
set(provoked "")
file(GLOB_RECURSE files ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
foreach(file IN LISTS files)
  file(STRINGS ${file} line REGEX "^// expect-error: ")
  string(REPLACE "// expect-error: " "" line "${line}")
  string(APPEND provoked "${line}\n")
endforeach()

set(missing "")
set(count 0)
file(GLOB_RECURSE headers ${INCLUDE_DIR}/mori_ep/*.hpp)
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(REPLACE ";" "@" text "${text}") # a semicolon would split CMake's lists
  string(REGEX REPLACE "\"[ \n]+\"" "" text "${text}") # adjacent literals are one
  string(REGEX MATCHALL "static_assert[^\"]*,[ \n]+\"[^\"]+\"\\)@" asserts "${text}")
  foreach(assert IN LISTS asserts)
    string(REGEX REPLACE "^[^\"]*\"(.*)\".@$" "\\1" expected "${assert}")
    math(EXPR count "${count} + 1")
    string(FIND "${provoked}" "${expected}\n" found)
    if(found EQUAL -1)
      list(APPEND missing "${expected}")
    endif()
  endforeach()
endforeach()

if(count EQUAL 0)
  message(FATAL_ERROR "No static_assert texts found below ${INCLUDE_DIR}.")
elseif(missing)
  list(JOIN missing "\n  " text)
  message(FATAL_ERROR "No file in test/compile_fail provokes:\n  ${text}")
endif()
message(STATUS "${count} static_assert texts, each provoked by a file")
