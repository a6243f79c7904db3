# SPDX-License-Identifier: MIT
# ctest -L rdma: fabric::Verbs over soft-RoCE, in emulated machines (support/rdma_vm.sh). Skipped where there can be none.
if(MORI_EP_SANITIZE)
  return()
endif()
add_executable(verbs_mesh fabric/verbs_mesh.cpp)
target_include_directories(verbs_mesh PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(verbs_mesh PRIVATE mori_ep_development)

foreach(nodes 1 2)
  add_test(NAME rdma.nodes_${nodes}
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/support/rdma_vm.sh --nodes ${nodes} --seconds 280 --
                   bash ${CMAKE_CURRENT_SOURCE_DIR}/fabric/verbs_mesh.sh $<TARGET_FILE:verbs_mesh> $<TARGET_FILE:mori_ep_test>)
  set_tests_properties(rdma.nodes_${nodes} PROPERTIES LABELS rdma TIMEOUT 400 SKIP_RETURN_CODE 77 RESOURCE_LOCK rdma_vm
                                                      PROCESSORS 2)
endforeach()

# Where libibverbs has no header: an error that says so.
add_executable(verbs_missing fabric/verbs_missing.cpp)
target_link_libraries(verbs_missing PRIVATE mori_ep_development)
add_test(NAME mori_ep.fabric.verbs_missing COMMAND verbs_missing)
set_tests_properties(mori_ep.fabric.verbs_missing PROPERTIES LABELS host)
