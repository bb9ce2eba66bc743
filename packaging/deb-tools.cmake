# Read by cpack. Without these tools it would make packages that depend on nothing, and say so in
# passing only.
if(CPACK_GENERATOR STREQUAL "DEB")
  foreach(tool dpkg-shlibdeps file)
    find_program(found_${tool} ${tool} NO_CACHE)
    if(NOT found_${tool})
      message(FATAL_ERROR "${tool} is missing: apt install dpkg-dev file")
    endif()
  endforeach()
endif()
