# SPDX-License-Identifier: MIT
# Uses mori_ep as a stranger would: installed and found, and as a subdirectory.
# Usage: cmake -D HOW=find_package|add_subdirectory -D SOURCE_DIR=<checkout> -D WORK_DIR=<scratch> -D VERSION=<x.y.z>
#              -D GENERATOR=<generator> -D MAKE_PROGRAM=<program> -D CXX=<compiler> -P consume.cmake
cmake_minimum_required(VERSION 3.25)
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -D CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -D CMAKE_CXX_COMPILER=${CXX})
set(consumer ${CMAKE_CURRENT_LIST_DIR})
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

function(build_consumer name)
  run(${configure} -S ${consumer} -B ${WORK_DIR}/${name} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/${name})
endfunction()

if(HOW STREQUAL "add_subdirectory")
  build_consumer(consumer -D SOURCE_TREE=${SOURCE_DIR})
  return()
endif()

# Installing needs none of what the tests and tools need.
run(${configure} -S ${SOURCE_DIR} -B ${WORK_DIR}/library -D MORI_EP_BUILD_TESTS=OFF -D MORI_EP_BUILD_BENCH=OFF
    -D MORI_EP_BUILD_EXAMPLES=OFF)
run(${CMAKE_COMMAND} --install ${WORK_DIR}/library --prefix ${WORK_DIR}/prefix)
file(GLOB_RECURSE source_headers RELATIVE ${SOURCE_DIR}/include ${SOURCE_DIR}/include/*)
file(GLOB_RECURSE installed_headers RELATIVE ${WORK_DIR}/prefix/include ${WORK_DIR}/prefix/include/*)
if(NOT source_headers STREQUAL installed_headers)
  message(FATAL_ERROR "Installed headers differ from the source's:\n${installed_headers}\n${source_headers}")
endif()

# The prefix may be moved: nothing in it may name a folder of this machine.
file(RENAME ${WORK_DIR}/prefix ${WORK_DIR}/moved)
file(REMOVE_RECURSE ${WORK_DIR}/library)
set(found -D CMAKE_PREFIX_PATH=${WORK_DIR}/moved)
build_consumer(consumer ${found} -D WANTED_VERSION=${VERSION})

# Before 1.0 a minor version may change the wire layout, so only the same minor version will do.
foreach(wanted 99.0 0.0)
  execute_process(COMMAND ${configure} -S ${consumer} -B ${WORK_DIR}/refused ${found} -D WANTED_VERSION=${wanted}
                  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  if(code EQUAL 0 OR NOT output MATCHES "compatible with requested version")
    message(FATAL_ERROR "find_package(mori_ep ${wanted}) was not refused for its version:\n${output}")
  endif()
endforeach()
