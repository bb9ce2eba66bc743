# The user's program, the same however it got redlease.
option(HEADER_ONLY "Use redlease::header_only" OFF)

add_executable(consumer "${CMAKE_CURRENT_LIST_DIR}/main.cpp")
if(HEADER_ONLY)
  target_sources(consumer PRIVATE "${CMAKE_CURRENT_LIST_DIR}/redlease.cpp")
  target_link_libraries(consumer PRIVATE redlease::header_only)
else()
  target_link_libraries(consumer PRIVATE redlease::redlease)
endif()
