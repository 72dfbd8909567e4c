# `cmake --build build --target bundle`: build/cuboid-VERSION-linux-ARCH.tar.gz, for GPU machines that build nothing.
# Made from a build of its own, in build/portable, that runs on any CPU of the architecture.
if(CUBOID_CUDA_BACKEND STREQUAL cuda)
  add_custom_target(bundle
    COMMAND ${PROJECT_SOURCE_DIR}/cmake/make-bundle ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${PROJECT_VERSION}
            ${CMAKE_COMMAND} ${CMAKE_GENERATOR}
    USES_TERMINAL VERBATIM)
else()
  add_custom_target(bundle
    COMMAND ${CMAKE_COMMAND} -E echo "bundle: is for GPUs, and this build has no CUDA toolkit"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
