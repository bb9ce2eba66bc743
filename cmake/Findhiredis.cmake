# Finds hiredis from 0.14 on and gives it one name: hiredis::hiredis, whose headers are included as
# <hiredis/hiredis.h>. Installed beside redleaseConfig.cmake, which uses it too. The order and its
# reasons: docs/decisions/0002-finding-hiredis.md.

# 1. The project around us has it already.
# 2. hiredis's own package: upstream from 1.0, vcpkg, Conan.
if(NOT TARGET hiredis::hiredis)
  find_package(hiredis CONFIG QUIET)
endif()
if(TARGET hiredis::hiredis)
  set(hiredis_FOUND TRUE)
  return()
endif()

# 3. Header and library; pkg-config, if there, says where to look first.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_HIREDIS QUIET hiredis)
endif()
# pkg-config names the directory of hiredis.h itself, or the one above it, or both.
set(hiredis_include_hints ${PC_HIREDIS_INCLUDEDIR} ${PC_HIREDIS_INCLUDE_DIRS})
list(TRANSFORM hiredis_include_hints REPLACE "/hiredis/?$" "")
find_path(REDLEASE_HIREDIS_INCLUDE_DIR hiredis/hiredis.h HINTS ${hiredis_include_hints})
find_library(REDLEASE_HIREDIS_LIBRARY hiredis HINTS ${PC_HIREDIS_LIBDIR} ${PC_HIREDIS_LIBRARY_DIRS})
mark_as_advanced(REDLEASE_HIREDIS_INCLUDE_DIR REDLEASE_HIREDIS_LIBRARY)
unset(hiredis_include_hints)

if(REDLEASE_HIREDIS_INCLUDE_DIR)
  set(hiredis_VERSION "")
  file(STRINGS "${REDLEASE_HIREDIS_INCLUDE_DIR}/hiredis/hiredis.h" hiredis_version_lines
    REGEX "^#define HIREDIS_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(line IN LISTS hiredis_version_lines)
    string(REGEX REPLACE ".* " "" number "${line}")
    string(APPEND hiredis_VERSION "${number}.")
  endforeach()
  string(REGEX REPLACE "\\.$" "" hiredis_VERSION "${hiredis_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(hiredis
  REQUIRED_VARS REDLEASE_HIREDIS_LIBRARY REDLEASE_HIREDIS_INCLUDE_DIR
  VERSION_VAR hiredis_VERSION)

if(hiredis_FOUND)
  add_library(hiredis::hiredis UNKNOWN IMPORTED)
  set_target_properties(hiredis::hiredis PROPERTIES
    IMPORTED_LOCATION "${REDLEASE_HIREDIS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${REDLEASE_HIREDIS_INCLUDE_DIR}")
endif()
