# SPDX-License-Identifier: MIT
# mori_ep_cuda_test: every test that can run on a GPU, from the source that the host's tests have, and gpu/*_test.cpp. A
# machine without a device skips them.
string(TOUPPER ${MORI_EP_GPU} language)
set(machine_tests ${test_sources})
list(FILTER machine_tests INCLUDE REGEX "^(ep_dispatch_combine_|layout/)")
list(REMOVE_ITEM machine_tests ${plan_tests})
file(GLOB gpu_tests CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} gpu/*_test.cpp)

# A language belongs to a file, and these files have C++ in mori_ep_test.
set(wrappers "")
set(gpu_network_operators ${network_operators})
list(REMOVE_ITEM gpu_network_operators support/network_verbs.cpp support/coded_rdma.cpp)
foreach(source IN LISTS machine_tests gpu_tests operators gpu_network_operators
        ITEMS support/machine_gpu.cpp support/operators.cpp)
  string(MAKE_C_IDENTIFIER ${source} name)
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/${MORI_EP_GPU}/${name}.cu)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"@CMAKE_CURRENT_SOURCE_DIR@/@source@\"\n" @ONLY)
  list(APPEND wrappers ${wrapper})
endforeach()
set_source_files_properties(${wrappers} PROPERTIES LANGUAGE ${language})

set(program mori_ep_${MORI_EP_GPU}_test)
add_executable(${program} ${wrappers} support/operators_host.cpp)
target_link_libraries(${program} PRIVATE mori_ep_test_common mori_ep::${MORI_EP_GPU})

foreach(source IN LISTS machine_tests plan_tests gpu_tests)
  cmake_path(GET source STEM stem)
  string(REGEX REPLACE "_test\\.cpp$" "" name ${source})
  string(REPLACE "/" "." name ${name})
  set(test mori_ep.${MORI_EP_GPU}.${name})
  add_test(NAME ${test} COMMAND ${program} --filenames-as-tags
                                "[#${stem}]~[host_only]")
  set_tests_properties(${test} PROPERTIES LABELS ${MORI_EP_GPU} TIMEOUT 900 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
endforeach()

# Plans between nodes, without relays and with. fabric::Loopback's arenas lie in pinned memory.
foreach(source IN LISTS plan_tests)
  cmake_path(GET source STEM stem)
  string(REGEX REPLACE "_test$" "" name ${stem})
  foreach(network 1 2)
    set(kind network)
    if(network EQUAL 2)
      set(kind relays)
    endif()
    set(test mori_ep.${MORI_EP_GPU}.${kind}.${name})
    add_test(NAME ${test} COMMAND ${program} --filenames-as-tags "[#${stem}]~[host_only]")
    set_tests_properties(${test} PROPERTIES LABELS ${MORI_EP_GPU} TIMEOUT 900 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu
                                            ENVIRONMENT "MORI_EP_TEST_NETWORK=${network};MORI_EP_TEST_CASES=40")
  endforeach()
endforeach()

# Ranks as processes, which take turns on a device: each play starts its processes, and with them the runtime, anew. The
# tests that only play plans, since nothing else may start the runtime in the process that forks; and those that are
# written for it.
foreach(source IN LISTS plan_tests ITEMS ep_dispatch_combine_recovery_test.cpp)
  cmake_path(GET source STEM stem)
  string(REGEX REPLACE "_test$" "" name ${stem})
  set(only "~[host_only]")
  if(stem STREQUAL "ep_dispatch_combine_recovery_test")
    set(only "[processes]")
  endif()
  set(test mori_ep.${MORI_EP_GPU}.processes.${name})
  add_test(NAME ${test} COMMAND ${program} --filenames-as-tags "[#${stem}]${only}")
  set_tests_properties(${test} PROPERTIES LABELS ${MORI_EP_GPU} TIMEOUT 1800 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu
                                          ENVIRONMENT "MORI_EP_TEST_PROCESSES=1;MORI_EP_TEST_CASES=12")
endforeach()

# ctest -L sanitizer: small worlds under compute-sanitizer. memcheck sees every access. racecheck sees hazards in a
# block's shared memory, and nothing else: the order of accesses between ranks is what the host's ThreadSanitizer runs
# and schedule/exploration_test.cpp show. initcheck sees reads of device memory that nothing wrote, and takes what a
# peer's kernel writes for unwritten until that kernel ends: so it is given a world of one, in raw arenas
# (support/guarded.hpp).
if(MORI_EP_GPU STREQUAL "cuda")
  cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH cuda_bin)
  find_program(MORI_EP_COMPUTE_SANITIZER compute-sanitizer HINTS ${cuda_bin})
  if(MORI_EP_COMPUTE_SANITIZER)
    foreach(tool memcheck racecheck initcheck)
      add_test(NAME mori_ep.cuda.${tool}
               COMMAND ${MORI_EP_COMPUTE_SANITIZER} --tool ${tool} --error-exitcode 66 $<TARGET_FILE:${program}>
                       --filenames-as-tags "[#ep_dispatch_combine_random_test]")
      set(environment MORI_EP_TEST_CASES=25)
      if(tool STREQUAL "initcheck")
        list(APPEND environment MORI_EP_TEST_WORLD=1 MORI_EP_TEST_RAW_ARENAS=1)
      endif()
      set_tests_properties(mori_ep.cuda.${tool} PROPERTIES LABELS sanitizer TIMEOUT 1800 SKIP_RETURN_CODE 77
                           RESOURCE_LOCK gpu ENVIRONMENT "${environment}")
    endforeach()
  else()
    message(STATUS "compute-sanitizer was not found: no tests with the label sanitizer.")
  endif()
endif()
