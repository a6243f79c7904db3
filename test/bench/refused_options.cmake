# SPDX-License-Identifier: MIT
# Options that do not go together are refused before anything runs, with exit code 2 and what to write instead.
# Usage: cmake -D EP_BENCH=<program> -P refused_options.cmake
cmake_minimum_required(VERSION 3.25)
# Each: the options, then the text.
foreach(case IN ITEMS
        "--nodes 2 -> --nodes and --transport go with --schedule internode or v1"
        "--transport verbs -> --nodes and --transport go with --schedule internode or v1"
        "--schedule v1 --nodes 9 --world 8 -> a node has at least one"
        "--schedule v1 --nodes 5 --world 8 -> 8 ranks by 2 make 4 nodes"
        "--schedule v1 --spawn 2 -> --transport loopback is a network inside one process"
        "--schedule v1 --transport verbs --dtype fp16 -> --transport verbs goes with --dtype bf16, not fp16"
        "--exec cuda --schedule internode -> --exec cuda goes with --schedule intranode, or v1 over --transport loopback"
        "--exec cuda --schedule v1 --transport verbs -> --exec cuda goes with --schedule intranode, or v1"
        "--exec cuda --schedule v1 --dtype fp32 -> --exec cuda --schedule v1 goes with --dtype bf16, not fp32"
        "--exec cuda --schedule v1 --world 32 -> for 16 ranks at most, on one device"
        "--exec cuda --schedule v1 --devices 2 -> for 16 ranks at most, on one device"
        "--schedule internode --rows-per-put 3 -> --rows-per-put goes with --schedule v1"
        "--experts 7 --world 2 -> --experts 7 is not a multiple of --world 2")
  string(FIND "${case}" " -> " middle)
  string(SUBSTRING "${case}" 0 ${middle} options)
  math(EXPR middle "${middle} + 4")
  string(SUBSTRING "${case}" ${middle} -1 expected)
  separate_arguments(options)
  execute_process(COMMAND ${EP_BENCH} run ${options} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(FIND "${err}" "${expected}" at)
  if(NOT code EQUAL 2 OR at EQUAL -1 OR NOT out STREQUAL "")
    message(SEND_ERROR "ep_bench run ${options}: exit code ${code}, expected 2 and '${expected}':\n${out}${err}")
  endif()
endforeach()
