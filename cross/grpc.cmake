# Included by CMake in gRPC's own project. Most of the time its compiler reads the same headers again and again, so its
# C++ files are compiled in groups: a third of the time. Programs become larger by two percent, so images and programs
# for other machines do without. Those left out define names that others define, too, among them src/wire/grpc_parts.rs.
if(CMAKE_VERSION VERSION_LESS 3.19)
  return()
endif()
set(alone
  src/core/ext/transport/chttp2/transport/bin_encoder.cc
  src/core/lib/event_engine/posix_engine/ev_poll_posix.cc
  src/core/lib/iomgr/ev_poll_posix.cc
  src/core/lib/iomgr/ev_posix.cc
  src/core/lib/security/credentials/alts/grpc_alts_credentials_server_options.cc
  src/core/plugin_registry/grpc_plugin_registry.cc
  src/core/plugin_registry/grpc_plugin_registry_noextra.cc
  src/core/tsi/local_transport_security.cc
)

function(compile_in_groups target)
  get_target_property(sources ${target} SOURCES)
  set(c_sources ${sources})
  list(FILTER c_sources INCLUDE REGEX "\\.c$")
  set_source_files_properties(${alone} ${c_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endfunction()
cmake_language(DEFER CALL compile_in_groups grpc_unsecure)
