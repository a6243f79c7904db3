# SPDX-License-Identifier: MIT
# Links every header's object file twice: a definition that is not inline is then there twice.
# Usage: cmake -D CXX=<compiler> -D FLAGS=<flags> -D OBJECTS=<response file> -D MAIN=<main.cpp> -D WORK_DIR=<scratch>
#              -D PLANTED=<header with a function that is not inline> -P link_twice.cmake
cmake_minimum_required(VERSION 3.25)
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
set(compile ${CXX} ${flags} -std=c++20)
file(MAKE_DIRECTORY ${WORK_DIR})

execute_process(COMMAND ${compile} ${MAIN} @${OBJECTS} @${OBJECTS} -pthread -o ${WORK_DIR}/twice RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "A header defines something that is not inline (see above).")
endif()

# The same link must fail for a header that has the fault, or it proves nothing.
file(WRITE ${WORK_DIR}/planted.cpp "#include \"${PLANTED}\"\n")
execute_process(COMMAND ${compile} -c ${WORK_DIR}/planted.cpp -o ${WORK_DIR}/planted.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${compile} ${MAIN} ${WORK_DIR}/planted.o ${WORK_DIR}/planted.o -o ${WORK_DIR}/planted
                RESULT_VARIABLE code ERROR_VARIABLE output)
if(code EQUAL 0 OR NOT output MATCHES "planted_not_inline")
  message(FATAL_ERROR "The planted definition that is not inline was not caught:\n${output}")
endif()
message(STATUS "every header linked twice; the planted fault was caught")
