# Checks that all who say redlease's version say the same as project() does.
#   cmake -DSOURCE_DIR=. -P tests/package/version.cmake
cmake_minimum_required(VERSION 3.22)

set(complaints "")
function(expect what found wanted)
  if(NOT found STREQUAL wanted)
    set(complaints "${complaints}  ${what}: ${found} instead of ${wanted}\n" PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to what the first group of the regular expression matches in the file.
function(read file regex result)
  file(READ "${SOURCE_DIR}/${file}" text)
  set(value "nothing")
  if(text MATCHES "${regex}")
    set(value "${CMAKE_MATCH_1}")
  endif()
  set(${result} "${value}" PARENT_SCOPE)
endfunction()

read(CMakeLists.txt "project\\(redlease VERSION ([0-9.]+)" version)
if(NOT version MATCHES "^([0-9]+)\\.([0-9]+)\\.([0-9]+)$")
  message(FATAL_ERROR "CMakeLists.txt has no version of three numbers: ${version}")
endif()
set(version_major "${CMAKE_MATCH_1}")
set(version_minor "${CMAKE_MATCH_2}")
set(version_patch "${CMAKE_MATCH_3}")

foreach(part IN ITEMS version_major version_minor version_patch)
  read(include/redlease/version.hpp "${part} = ([0-9]+);" found)
  expect("version.hpp, ${part}" "${found}" "${${part}}")
endforeach()
read(include/redlease/version.hpp "header_version = \"([^\"]*)\"" found)
expect("version.hpp, header_version" "${found}" "${version}")

foreach(manifest IN ITEMS vcpkg.json packaging/vcpkg/ports/redlease/vcpkg.json)
  file(READ "${SOURCE_DIR}/${manifest}" json)
  string(JSON found GET "${json}" version)
  expect("${manifest}" "${found}" "${version}")
endforeach()

file(GLOB files RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/README*.md"
  "${SOURCE_DIR}/examples/*/CMakeLists.txt" "${SOURCE_DIR}/tests/package/*/CMakeLists.txt")
foreach(file IN LISTS files)
  file(STRINGS "${SOURCE_DIR}/${file}" lines REGEX "find_package\\(redlease [0-9]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE ".*find_package\\(redlease ([0-9.]+).*" "\\1" found "${line}")
    expect("${file}, find_package()" "${found}" "${version_major}.${version_minor}")
  endforeach()
endforeach()

# It reads CMakeLists.txt itself.
read(conanfile.py "\n    version *= *([^\n]*)" found)
expect("conanfile.py" "${found}" "nothing")

if(complaints)
  message(FATAL_ERROR "The version is not the same everywhere:\n${complaints}"
    "./scripts/set-version ${version} writes it everywhere.")
endif()
