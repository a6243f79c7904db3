# SPDX-License-Identifier: MIT
# Checks of the sources themselves: what compiles, what must not, who includes whom, how a consumer finds the package.
# A sanitizer build has nothing to add to them.
if(MORI_EP_SANITIZE)
  return()
endif()
set(check_dir ${CMAKE_CURRENT_BINARY_DIR}/checks)
set(compiler -D CXX=${CMAKE_CXX_COMPILER} -D FLAGS=${CMAKE_CXX_FLAGS} -D INCLUDE_DIR=${PROJECT_SOURCE_DIR}/include)

# Adds the test checks.<name>: `cmake <definitions> -P <script>`.
function(add_check name script)
  add_test(NAME checks.${name} COMMAND ${CMAKE_COMMAND} ${ARGN} -P ${CMAKE_CURRENT_SOURCE_DIR}/${script})
  set_tests_properties(checks.${name} PROPERTIES LABELS checks)
endfunction()

add_check(layer_rule layers/layer_rule.cmake -D INCLUDE_DIR=${PROJECT_SOURCE_DIR}/include)
add_check(layer_rule.selftest layers/layer_rule_selftest.cmake -D INCLUDE_DIR=${PROJECT_SOURCE_DIR}/include
          -D WORK_DIR=${check_dir}/layers)
add_check(source_files layers/source_files.cmake -D SOURCE_DIR=${PROJECT_SOURCE_DIR})

# Every header alone and twice in one translation unit: compiled with the build, in parallel, unoptimised.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include/mori_ep ${PROJECT_SOURCE_DIR}/include/mori_ep/*.hpp)
set(header_sources "")
set(include_lines "")
find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  list(FILTER headers EXCLUDE REGEX "mpi_bootstrap")
endif()
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  configure_file(headers/header_twice.cpp.in ${check_dir}/headers/${name}.cpp @ONLY)
  list(APPEND header_sources ${check_dir}/headers/${name}.cpp)
  string(APPEND include_lines "#include \"mori_ep/${header}\"\n")
endforeach()
add_library(mori_ep_headers OBJECT ${header_sources})
target_link_libraries(mori_ep_headers PRIVATE mori_ep_development)
target_compile_options(mori_ep_headers PRIVATE -O0)
if(MPI_CXX_FOUND)
  target_include_directories(mori_ep_headers SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
  # MPI's own classes for C++ would need its library, with which these objects are not linked.
  target_compile_definitions(mori_ep_headers PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()
file(GENERATE OUTPUT ${check_dir}/header_objects$<CONFIG>.rsp CONTENT "\"$<JOIN:$<TARGET_OBJECTS:mori_ep_headers>,\"\n\">\"\n")
add_check(headers.link_twice headers/link_twice.cmake ${compiler} -D OBJECTS=${check_dir}/header_objects$<CONFIG>.rsp
          -D MAIN=${CMAKE_CURRENT_SOURCE_DIR}/headers/main.cpp -D WORK_DIR=${check_dir}/link_twice
          -D PLANTED=${CMAKE_CURRENT_SOURCE_DIR}/headers/planted_not_inline.hpp)

configure_file(headers/no_exceptions.cpp.in ${check_dir}/no_exceptions.cpp @ONLY)
add_library(mori_ep_no_exceptions OBJECT ${check_dir}/no_exceptions.cpp)
target_link_libraries(mori_ep_no_exceptions PRIVATE mori_ep_development)
target_compile_options(mori_ep_no_exceptions PRIVATE -O0 -fno-exceptions -fno-rtti)
if(MPI_CXX_FOUND)
  target_include_directories(mori_ep_no_exceptions SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
endif()

add_check(compile_time headers/compile_time.cmake ${compiler} -D SOURCE=${CMAKE_CURRENT_SOURCE_DIR}/headers/one_operator.cpp)
set_tests_properties(checks.compile_time PROPERTIES RUN_SERIAL ON)

# What must not compile, with the text that says what to write instead.
file(GLOB wrong_programs CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} compile_fail/*.cpp)
foreach(wrong IN LISTS wrong_programs)
  cmake_path(GET wrong STEM name)
  add_check(compile_fail.${name} compile_fail/expect_error.cmake ${compiler} -D SOURCE=${CMAKE_CURRENT_SOURCE_DIR}/${wrong})
endforeach()
add_check(compile_fail.coverage compile_fail/coverage.cmake -D INCLUDE_DIR=${PROJECT_SOURCE_DIR}/include)

foreach(how find_package add_subdirectory)
  add_check(package.${how} package/consume.cmake -D HOW=${how} -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
            -D WORK_DIR=${check_dir}/${how} -D VERSION=${PROJECT_VERSION} -D GENERATOR=${CMAKE_GENERATOR}
            -D MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -D CXX=${CMAKE_CXX_COMPILER})
endforeach()
add_check(package.minimal_example package/minimal_example.cmake ${compiler} -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
          -D WORK_DIR=${check_dir}/minimal_example)

# mpirun takes these from the environment: root may use it, and ranks may outnumber the cores.
set(mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1)
set(mpirun "")
if(MPI_CXX_FOUND)
  set(mpirun ${MPIEXEC_EXECUTABLE})
endif()

# Ranks that are processes. An example that cannot be built here is skipped, and says why.
if(TARGET tcp_bootstrap)
  add_test(NAME checks.examples.tcp_bootstrap COMMAND tcp_bootstrap)
  if(TARGET mpi_bootstrap AND mpirun)
    add_test(NAME checks.examples.mpi_bootstrap COMMAND ${mpirun} ${MPIEXEC_NUMPROC_FLAG} 4 $<TARGET_FILE:mpi_bootstrap>)
  else()
    add_test(NAME checks.examples.mpi_bootstrap COMMAND ${CMAKE_COMMAND} -E echo "skipped: no MPI for C++ was found")
  endif()
  set_tests_properties(checks.examples.tcp_bootstrap checks.examples.mpi_bootstrap PROPERTIES LABELS checks TIMEOUT 300
                       ENVIRONMENT "${mpi_environment}" SKIP_REGULAR_EXPRESSION "skipped: no MPI")
endif()

# What the other side of a bootstrap may send, with clang's fuzzer: some seconds from seeds that the program makes.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=fuzzer,address,undefined")
set(CMAKE_REQUIRED_LINK_OPTIONS -fsanitize=fuzzer,address,undefined)
check_cxx_source_compiles("extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }"
                          MORI_EP_HAS_FUZZER)
unset(CMAKE_REQUIRED_FLAGS)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(MORI_EP_HAS_FUZZER)
  add_executable(bootstrap_fuzz fuzz/bootstrap_fuzz.cpp)
  target_link_libraries(bootstrap_fuzz PRIVATE mori_ep_development)
  set(fuzzer -fsanitize=fuzzer,address,undefined)
  target_compile_options(bootstrap_fuzz PRIVATE ${fuzzer} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1)
  target_link_options(bootstrap_fuzz PRIVATE ${fuzzer})
  foreach(target_and_runs parsers/200000 mesh/5000 join/1000)
    cmake_path(GET target_and_runs PARENT_PATH target)
    cmake_path(GET target_and_runs FILENAME runs)
    add_test(NAME checks.fuzz.${target}
             COMMAND bootstrap_fuzz -runs=${runs} -max_total_time=20 -max_len=1024 -timeout=20 -malloc_limit_mb=64
                     -rss_limit_mb=1024 -seed=1 -artifact_prefix=fuzz_${target}_ fuzz_${target}
             WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(checks.fuzz.${target} PROPERTIES LABELS checks ENVIRONMENT MORI_EP_FUZZ=${target})
  endforeach()
endif()

if(TARGET ep_bench)
  add_check(bench.no_device bench/no_device.cmake -D EP_BENCH=$<TARGET_FILE:ep_bench> "-DGPU=${MORI_EP_GPU}")
  add_check(bench.refused_options bench/refused_options.cmake -D EP_BENCH=$<TARGET_FILE:ep_bench>)
  add_check(bench.processes bench/processes.cmake -D EP_BENCH=$<TARGET_FILE:ep_bench> "-DMPIRUN=${mpirun}"
            "-DCOUNT_FLAG=${MPIEXEC_NUMPROC_FLAG}" -D WORK_DIR=${check_dir}/processes)
  add_test(NAME checks.bench.ended_processes
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/bench/ended_processes.sh $<TARGET_FILE:ep_bench> ${check_dir})
  if(TARGET tcp_bootstrap)
    add_test(NAME checks.bench.readme_commands
             COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/bench/readme_commands.sh ${PROJECT_SOURCE_DIR}/README.md
                     ${PROJECT_BINARY_DIR} "${mpirun}")
    set_tests_properties(checks.bench.readme_commands PROPERTIES LABELS checks TIMEOUT 600)
  endif()
  set_tests_properties(checks.bench.processes checks.bench.ended_processes PROPERTIES LABELS checks TIMEOUT 600
                       ENVIRONMENT "${mpi_environment}")
  add_check(bench.doctor bench/doctor.cmake -D EP_BENCH=$<TARGET_FILE:ep_bench> -D README=${PROJECT_SOURCE_DIR}/README.md)
endif()
