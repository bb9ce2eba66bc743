# `cpack -G DEB` in a build directory with BUILD_SHARED_LIBS=ON and the prefix /usr makes
# libredlease0.1 and libredlease-dev. How they are proven: docs/packaging.md.
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_CONTACT "The redlease authors <redlease@localhost>" CACHE STRING
  "Who maintains the packages that CPack makes")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PROJECT_CONFIG_FILE "${CMAKE_CURRENT_LIST_DIR}/deb-tools.cmake")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME "libredlease${abi_version}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "Redis leases for C++20: the shared library")

# The shared library hides what it is made of; only redlease::header_only needs it.
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libredlease-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libredlease${abi_version} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "libhiredis-dev, libfmt-dev, libboost-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Redis leases for C++20: headers, CMake and pkg-config files")

# Debian wants the licence in each package. Only the components are installed with it.
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libredlease${abi_version}" RENAME copyright
  COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libredlease-dev" RENAME copyright
  COMPONENT dev EXCLUDE_FROM_ALL)

include(CPack)
