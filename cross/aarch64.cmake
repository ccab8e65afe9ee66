# Toolchain file of builds for aarch64 on another machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_PROJECT_grpc_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/grpc.cmake")
