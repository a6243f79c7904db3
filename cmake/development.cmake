# SPDX-License-Identifier: MIT
# What this repository's own programs are compiled with; consumers never see it.
add_library(mori_ep_development INTERFACE)
target_link_libraries(mori_ep_development INTERFACE mori_ep::mori_ep)
target_compile_options(mori_ep_development INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas>"
  "$<$<COMPILE_LANGUAGE:HIP>:-Wall;-Wextra;-Wshadow>")
# False alarms: g++ 12 on std::string's own copies; clang 22 on the __COUNTER__ in Catch2's macros.
target_compile_options(mori_ep_development INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,22>>:-Wno-c2y-extensions>)
# Lines of functions, for backtraces: full debug information takes a quarter of the compile time.
target_compile_options(mori_ep_development INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-g1>")
if(MORI_EP_SANITIZE STREQUAL "thread")
  target_compile_options(mori_ep_development INTERFACE -fsanitize=thread -g1 -O1)
  target_link_options(mori_ep_development INTERFACE -fsanitize=thread)
elseif(MORI_EP_SANITIZE STREQUAL "address")
  target_compile_options(mori_ep_development INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1)
  target_link_options(mori_ep_development INTERFACE -fsanitize=address,undefined)
elseif(NOT MORI_EP_SANITIZE STREQUAL "")
  message(FATAL_ERROR "MORI_EP_SANITIZE is '${MORI_EP_SANITIZE}': use thread, address or nothing.")
endif()
