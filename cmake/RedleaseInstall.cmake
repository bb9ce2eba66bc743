# Installs the library, its headers (the generated one, too), the package that find_package(redlease)
# reads and the one for pkg-config. Component `runtime` is what programs need to run, `dev` the rest.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/redlease")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" "${generated_include}/"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  COMPONENT dev
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.ipp")

# Two export sets: users of the compiled library must not need what only the headers need.
install(TARGETS redlease_header_only EXPORT redleaseHeaderOnlyTargets)
install(EXPORT redleaseHeaderOnlyTargets
  NAMESPACE redlease:: DESTINATION "${package_dir}" COMPONENT dev)

if(REDLEASE_BUILD_LIBRARY)
  install(TARGETS redlease EXPORT redleaseTargets
    RUNTIME COMPONENT runtime
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev
    ARCHIVE COMPONENT dev)
  install(EXPORT redleaseTargets
    NAMESPACE redlease:: DESTINATION "${package_dir}" COMPONENT dev)

  # What a user has to find and link himself: a shared library carries its own.
  get_target_property(library_type redlease TYPE)
  if(library_type STREQUAL "SHARED_LIBRARY")
    set(link_dependencies "")
    set(pc_cflags "-DREDLEASE_SHARED")
  else()
    set(pc_cflags "")
  endif()

  # Relative to the file, so that the installed tree can be moved; but that of the compiler itself by
  # its name, for pkg-config leaves out the directories that are searched anyway.
  set(pc_dir "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH pc_prefix "${pc_dir}" "${CMAKE_INSTALL_PREFIX}")
  string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${pc_prefix}")
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(pc_prefix "/usr")
  endif()
  file(RELATIVE_PATH pc_libdir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  file(RELATIVE_PATH pc_includedir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
  list(JOIN link_dependencies ", " pc_requires)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/redlease.pc.in" "${PROJECT_BINARY_DIR}/redlease.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/redlease.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
endif()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/redleaseConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/redleaseConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/redleaseConfigVersion.cmake"
  COMPATIBILITY ${version_compatibility})
install(FILES
  "${PROJECT_BINARY_DIR}/redleaseConfig.cmake"
  "${PROJECT_BINARY_DIR}/redleaseConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/Findhiredis.cmake"
  DESTINATION "${package_dir}" COMPONENT dev)

if(PROJECT_IS_TOP_LEVEL)
  include("${PROJECT_SOURCE_DIR}/packaging/deb.cmake")
endif()
