# SPDX-License-Identifier: MIT
# The layer rule: a file may include only its own layer and the layers before it in this list.
# Usage: cmake -D INCLUDE_DIR=<folder that holds mori_ep/> -P layer_rule.cmake
cmake_minimum_required(VERSION 3.25)
set(layers version.hpp error.hpp env env.hpp numeric exec comm fabric transport routing quant launch schedule trace
           layout ep_dispatch_combine.hpp support_matrix.hpp mori_ep.hpp)

# A file's layer is its folder, or the file itself at the root.
function(layer_of path result)
  string(REGEX REPLACE "/.*" "" layer "${path}")
  list(FIND layers "${layer}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${path}: '${layer}' is in no layer. Give it a place in test/layers/layer_rule.cmake.")
  endif()
  set(${result} ${position} PARENT_SCOPE)
endfunction()

set(violations "")
file(GLOB_RECURSE headers RELATIVE ${INCLUDE_DIR}/mori_ep ${INCLUDE_DIR}/mori_ep/*)
foreach(header IN LISTS headers)
  layer_of(${header} from)
  file(STRINGS ${INCLUDE_DIR}/mori_ep/${header} includes REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS includes)
    if(line MATCHES "[<\"]mori_ep/([^\">]+)[\">]")
      set(target ${CMAKE_MATCH_1})
      layer_of(${target} to)
      if(to GREATER from)
        list(APPEND violations "${header} includes ${target}, which is in a later layer")
      endif()
    elseif(line MATCHES "\"")
      # A relative path would escape this check and break when a file moves.
      list(APPEND violations "${header} has '${line}': own headers are included as \"mori_ep/...\"")
    endif()
  endforeach()
endforeach()

list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "No headers below ${INCLUDE_DIR}/mori_ep.")
elseif(violations)
  list(JOIN violations "\n  " text)
  message(FATAL_ERROR "The layer rule is broken:\n  ${text}")
endif()
message(STATUS "${count} headers keep the layer rule.")
