# redlease_warnings(TARGET) sets the warnings for our own sources, and only when this is the top-level
# project: others should neither see nor stumble over them. Never on an interface.
function(redlease_warnings target)
  if(NOT PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    return()
  endif()
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual
    -Wnon-virtual-dtor -Woverloaded-virtual -Wformat=2 -Wundef)
  # GCC 12 sees overlapping copies in every "text" + std::string (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(REDLEASE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
