# Install rules: headers, the shared library, the CLI, find_package(cadre) and pkg-config.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS cadre EXPORT cadreTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/cadre" "${PROJECT_BINARY_DIR}/include/cadre"
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
if(TARGET cadre_cli)
  install(TARGETS cadre_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(cadre_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cadre)
install(EXPORT cadreTargets NAMESPACE cadre:: DESTINATION ${cadre_cmake_dir})
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/cadreConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/cadreConfig.cmake"
  INSTALL_DESTINATION ${cadre_cmake_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cadreConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cadreConfig.cmake" "${PROJECT_BINARY_DIR}/cadreConfigVersion.cmake"
  DESTINATION ${cadre_cmake_dir})

configure_file("${PROJECT_SOURCE_DIR}/cmake/cadre.pc.in" "${PROJECT_BINARY_DIR}/cadre.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cadre.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
