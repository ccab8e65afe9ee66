# Toolchain file of builds for this machine: CMake finds the compilers itself, or takes those that CC and CXX name.
set(CMAKE_PROJECT_grpc_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/grpc.cmake")
