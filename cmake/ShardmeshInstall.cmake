# What `cmake --install` leaves for others: the programs, and the client library as the CMake package shardmesh.
#
#   find_package(shardmesh REQUIRED)
#   target_link_libraries(mine PRIVATE shardmesh::client)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardmesh)
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/shardmesh)

# The client and all that it stands on; the servers' libraries stay at home. Of the client, users get
# the headers that name no type of rpc: client/*.h and client/types (tests/layering_test.py).
set(client_folders status process sharding tensor program rpc client)
foreach(library proto status process process_folders process_sealed sharding sharding_pattern sharding_rules
    sharding_layout sharding_reshard tensor tensor_checkpoint program program_graph rpc rpc_codec rpc_tls rpc_stream rpc_metrics client client_types
    client_remote)
  install(TARGETS shardmesh_${library} EXPORT shardmesh ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(DIRECTORY ${client_folders} DESTINATION ${header_dir}
  FILES_MATCHING PATTERN "*.h" PATTERN cli EXCLUDE PATTERN local EXCLUDE PATTERN remote EXCLUDE PATTERN python EXCLUDE
  PATTERN client_core.h EXCLUDE)
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/generated/ DESTINATION ${header_dir} FILES_MATCHING PATTERN "*.h")

install(EXPORT shardmesh NAMESPACE shardmesh:: DESTINATION ${package_dir} FILE shardmeshTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/shardmeshConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shardmeshConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardmeshConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardmeshConfig.cmake ${PROJECT_BINARY_DIR}/shardmeshConfigVersion.cmake
  DESTINATION ${package_dir})
