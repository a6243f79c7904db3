# SPDX-License-Identifier: MIT
# mori_ep_<gpu>_test: every test that can run on a GPU, from the source that the host's tests have, and gpu/*_test.cpp. A
# machine without a device skips them.
string(TOUPPER ${MORI_EP_GPU} language)
set(machine_tests ${test_sources})
list(FILTER machine_tests INCLUDE REGEX "^(ep_dispatch_combine_|layout/)")
list(FILTER machine_tests EXCLUDE REGEX "allocation_test")  # of the host's stream
list(REMOVE_ITEM machine_tests ${plan_tests})
file(GLOB gpu_tests CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} gpu/*_test.cpp)

# A language belongs to a file, and these files have C++ in mori_ep_test.
set(wrappers "")
foreach(source IN LISTS machine_tests gpu_tests operators ITEMS support/machine_gpu.cpp support/operators.cpp)
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
  add_test(NAME ${test} COMMAND ${program} --filenames-as-tags "[#${stem}]~[one_gpu_is_too_small]")
  set_tests_properties(${test} PROPERTIES LABELS ${MORI_EP_GPU} TIMEOUT 900 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
endforeach()
