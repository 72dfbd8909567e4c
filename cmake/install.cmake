# What `cmake --install` leaves: the program, the libraries with their headers, and the package that find_package(cuboid)
# finds. Its target cuboid::cuboid is everything; cuboid::ops, cuboid::train, … are the layers.
include(CMakePackageConfigHelpers)
find_package(MPI COMPONENTS CXX)  # whether src/comm uses it

# Libraries that are not layers and that the layers need at link time.
foreach(name dnnl cuboid_mpi)
  install(TARGETS ${name} EXPORT cuboid_targets)
endforeach()
add_library(cuboid_everything INTERFACE)
target_link_libraries(cuboid_everything INTERFACE cuboid_launch cuboid_plan)
target_compile_features(cuboid_everything INTERFACE cxx_std_20)
set_target_properties(cuboid_everything PROPERTIES EXPORT_NAME cuboid)
install(TARGETS cuboid_everything EXPORT cuboid_targets)

install(TARGETS cuboid)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cuboid TYPE INCLUDE)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/cuboid)
install(EXPORT cuboid_targets NAMESPACE cuboid:: FILE cuboidTargets.cmake DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cuboidConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cuboidConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cuboidConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cuboidConfig.cmake ${PROJECT_BINARY_DIR}/cuboidConfigVersion.cmake
  DESTINATION ${package_folder})
