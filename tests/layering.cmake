# Checks from the #includes that arrows between the layers point one way.
#   cmake -DINCLUDE_DIR=include -P tests/layering.cmake
cmake_minimum_required(VERSION 3.22)

# From the first to the last; a file includes only its own layer and those before it. A directory
# stands for all that is in it.
set(layers words core wire store topology runtime top)
set(words api version error token fencing options observer single_flight clock duration fmt)
set(top lease client quorum_client metrics redlease src)

function(layer_of file result)  # file: relative to include/redlease
  string(REGEX REPLACE "\\.[hi]pp$" "" stem "${file}")
  if(stem MATCHES "/")
    string(REGEX REPLACE "/.*" "" stem "${stem}")
    list(FIND layers "${stem}" index)
  elseif(stem IN_LIST words)
    list(FIND layers words index)
  elseif(stem IN_LIST top)
    list(FIND layers top index)
  else()
    set(index -1)
  endif()
  set(${result} ${index} PARENT_SCOPE)
endfunction()

set(complaints "")
function(complain text)
  set(complaints "${complaints}  ${text}\n" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${INCLUDE_DIR}/redlease"
  "${INCLUDE_DIR}/redlease/*.hpp" "${INCLUDE_DIR}/redlease/*.ipp")
list(SORT files)
foreach(file IN LISTS files)
  layer_of("${file}" layer)
  if(layer EQUAL -1)
    complain("${file} is in no layer")
    continue()
  endif()
  list(GET layers ${layer} layer_name)

  file(STRINGS "${INCLUDE_DIR}/redlease/${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[^<\"]*[<\"]([^>\"]*).*" "\\1" included "${line}")

    if(line MATCHES "\"")
      complain("${file} includes \"${included}\": write <redlease/...>")
    elseif(included MATCHES "^redlease/(.*)")
      layer_of("${CMAKE_MATCH_1}" included_layer)
      if(included_layer EQUAL -1 OR included_layer GREATER layer)
        complain("${file} (${layer_name}) includes <${included}>")
      endif()
    elseif(included MATCHES "^hiredis/" AND NOT layer_name STREQUAL "wire")
      complain("${file} includes <${included}>: only wire/ knows hiredis")
    elseif(included MATCHES "^(fmt|boost)/" AND layer_name MATCHES "^(words|top)$"
        AND file MATCHES "\\.hpp$" AND NOT file STREQUAL "fmt.hpp")
      complain("${file} includes <${included}>: users of the compiled library don't see it")
    elseif(layer_name STREQUAL "core" AND included MATCHES
        "^(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|sys/.*|[a-z]+\\.h)$")
      complain("${file} includes <${included}>: core has no threads and no system")
    endif()
  endforeach()
endforeach()

if(complaints)
  message(FATAL_ERROR "The layers are broken:\n${complaints}")
endif()
