# Included by CMake in gRPC's own project. Most of the time its compiler reads the same headers again and again, so
# files are compiled in groups: a third of the time. Those left out define names that others define, too.
if(CMAKE_VERSION VERSION_LESS 3.19)
  return()
endif()
set_source_files_properties(
  src/core/ext/transport/chttp2/transport/bin_encoder.cc
  src/core/lib/event_engine/posix_engine/ev_poll_posix.cc
  src/core/lib/iomgr/ev_poll_posix.cc
  src/core/lib/iomgr/ev_posix.cc
  src/core/lib/security/credentials/alts/grpc_alts_credentials_server_options.cc
  src/core/tsi/local_transport_security.cc
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_target_properties grpc_unsecure gpr PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
