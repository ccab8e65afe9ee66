# Toolchain file of builds for this machine: CMake finds the compilers itself.
set(CMAKE_PROJECT_grpc_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/grpc.cmake")
