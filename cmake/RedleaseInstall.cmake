# Installs the library, its headers (the generated one, too) and the package that
# find_package(redlease) reads.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/redlease")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" "${generated_include}/"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.ipp")

# Two export sets: users of the compiled library must not need what only the headers need.
install(TARGETS redlease EXPORT redleaseTargets)
install(EXPORT redleaseTargets NAMESPACE redlease:: DESTINATION "${package_dir}")
install(TARGETS redlease_header_only EXPORT redleaseHeaderOnlyTargets)
install(EXPORT redleaseHeaderOnlyTargets NAMESPACE redlease:: DESTINATION "${package_dir}")

# What a user of redlease::redlease has to find in order to link: a shared library carries its own.
get_target_property(library_type redlease TYPE)
if(NOT library_type STREQUAL "STATIC_LIBRARY")
  set(link_dependencies "")
endif()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/redleaseConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/redleaseConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/redleaseConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/redleaseConfig.cmake"
  "${PROJECT_BINARY_DIR}/redleaseConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/Findhiredis.cmake"
  DESTINATION "${package_dir}")
