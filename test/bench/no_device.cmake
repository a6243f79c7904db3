# SPDX-License-Identifier: MIT
# ep_bench says why it cannot run on a GPU, and its exit code tells the two reasons apart.
# Usage: cmake -D EP_BENCH=<program> -D GPU=<what it was built for> -P no_device.cmake
cmake_minimum_required(VERSION 3.25)
set(ENV{CUDA_VISIBLE_DEVICES} "")  # the same on a machine that has one
execute_process(COMMAND ${EP_BENCH} run --exec cuda --graph RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(GPU STREQUAL "cuda")
  set(expected_code 3)
  set(expected_text "no device to run on")
else()
  set(expected_code 2)
  set(expected_text "Configure with -DMORI_EP_GPU=cuda")
endif()
if(NOT code EQUAL expected_code OR NOT err MATCHES "${expected_text}" OR NOT out STREQUAL "")
  message(FATAL_ERROR "Exit code ${code}, expected ${expected_code} and '${expected_text}':\n${out}${err}")
endif()
