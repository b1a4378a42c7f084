# One function per kind of target. Sources are listed by name; links go through shardmesh:: aliases.
include(GNUInstallDirs)

# What every target of ours is compiled with: the source root as include path, and strict warnings.
function(shardmesh_target_defaults target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardmesh>)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Woverloaded-virtual -Wno-unused-parameter $<$<BOOL:${SHARDMESH_WERROR}>:-Werror>)
endfunction()

# shardmesh_library(NAME sharding SRCS ... [DEPS public...] [PRIVATE_DEPS ...]) defines shardmesh::NAME.
function(shardmesh_library)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target shardmesh_${arg_NAME})
  add_library(${target} STATIC ${arg_SRCS})
  add_library(shardmesh::${arg_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME})
  shardmesh_target_defaults(${target})
  target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
endfunction()

# shardmesh_binary(NAME shardmesh-worker SRCS ... DEPS ...) defines an installed program.
function(shardmesh_binary)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  shardmesh_target_defaults(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS})
  install(TARGETS ${arg_NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# shardmesh_test(NAME sharding_test SRCS ... DEPS ... LABELS unit [TIMEOUT s]) defines a GoogleTest program,
# each of whose tests ctest runs by name. Labels: unit, integration; concurrent = also runs under TSan.
function(shardmesh_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${arg_NAME} ${arg_SRCS})
  shardmesh_target_defaults(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${arg_NAME} PRIVATE SHARDMESH_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    SHARDMESH_BINARY_DIR="${CMAKE_BINARY_DIR}/bin")
  include(GoogleTest)
  gtest_discover_tests(${arg_NAME} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
