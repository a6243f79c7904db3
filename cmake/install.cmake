# SPDX-License-Identifier: MIT
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(mori_ep_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mori_ep)
install(TARGETS mori_ep mori_ep_cuda mori_ep_hip EXPORT mori_ep_targets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT mori_ep_targets NAMESPACE mori_ep:: DESTINATION ${mori_ep_package_dir})
write_basic_package_version_file(mori_ep-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/mori_ep-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/mori_ep-config-version.cmake
        DESTINATION ${mori_ep_package_dir})
