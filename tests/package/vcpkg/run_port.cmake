# Runs the port's portfile with stand-ins for vcpkg's functions, which do to the installed files what
# vcpkg's are documented to do. Where vcpkg isn't to be had, this tells whether the port's options,
# paths and files are right; it is no replacement for `vcpkg install`.
#   cmake -DPORT_DIR=… -DPACKAGE_DIR=… -DLINKAGE=static -DJOBS=2 -P run_port.cmake
cmake_minimum_required(VERSION 3.22)

set(PORT redlease)
set(CURRENT_PACKAGES_DIR "${PACKAGE_DIR}")
string(COMPARE EQUAL "${LINKAGE}" dynamic shared)
set(configurations Debug Release)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Sets `prefix` to where a configuration is installed.
function(prefix_of configuration prefix)
  set(${prefix} "${CURRENT_PACKAGES_DIR}" PARENT_SCOPE)
  if(configuration STREQUAL "Debug")
    set(${prefix} "${CURRENT_PACKAGES_DIR}/debug" PARENT_SCOPE)
  endif()
endfunction()

function(vcpkg_from_github)
  message(FATAL_ERROR "the port doesn't see that it lies in redlease's sources")
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  foreach(configuration IN LISTS configurations)
    prefix_of(${configuration} prefix)
    run("${CMAKE_COMMAND}" -G Ninja -S "${arg_SOURCE_PATH}" -B "${PACKAGE_DIR}.${configuration}"
      -DCMAKE_BUILD_TYPE=${configuration} -DCMAKE_INSTALL_PREFIX=${prefix}
      -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=${shared} ${arg_OPTIONS})
  endforeach()
endfunction()

function(vcpkg_cmake_install)
  foreach(configuration IN LISTS configurations)
    run("${CMAKE_COMMAND}" --build "${PACKAGE_DIR}.${configuration}" --target install -j ${JOBS})
    file(REMOVE_RECURSE "${PACKAGE_DIR}.${configuration}")
  endforeach()
endfunction()

# Moves the package to share/, from where the prefix is two directories up, and adds the debug one's
# targets, which lie below debug/.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
  set(share "${CURRENT_PACKAGES_DIR}/share/${PORT}")
  file(GLOB files "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*")
  file(COPY ${files} DESTINATION "${share}")
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib/cmake")

  file(GLOB files "${CURRENT_PACKAGES_DIR}/debug/${arg_CONFIG_PATH}/*-debug.cmake")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME)
    file(READ "${file}" text)
    string(REPLACE "\${_IMPORT_PREFIX}/lib" "\${_IMPORT_PREFIX}/debug/lib" text "${text}")
    file(WRITE "${share}/${name}" "${text}")
  endforeach()
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/lib/cmake")

  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  file(GLOB files "${share}/*Targets.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    file(WRITE "${file}" "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB_RECURSE files "${CURRENT_PACKAGES_DIR}/*.pc")
  list(LENGTH files count)
  if(NOT count EQUAL 2)
    message(FATAL_ERROR "not one .pc file a configuration: ${files}")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  file(COPY_FILE ${arg_FILE_LIST} "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright")
endfunction()

include("${PORT_DIR}/portfile.cmake")

# What vcpkg complains of after a port was built.
file(GLOB_RECURSE files LIST_DIRECTORIES true RELATIVE "${CURRENT_PACKAGES_DIR}" "${CURRENT_PACKAGES_DIR}/*")
foreach(file IN LISTS files)
  if(file MATCHES "^debug/(include|share)" OR file MATCHES "lib/cmake")
    message(FATAL_ERROR "${file} must not be in a port")
  endif()
endforeach()
foreach(file IN ITEMS share/redlease/copyright share/redlease/usage share/redlease/redleaseConfig.cmake)
  if(NOT file IN_LIST files)
    message(FATAL_ERROR "the port lacks ${file}")
  endif()
endforeach()
