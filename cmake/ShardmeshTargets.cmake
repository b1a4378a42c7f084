# One function per kind of target. Sources are listed by name; links go through shardmesh:: aliases.
include(GNUInstallDirs)

# What ./dev quickstart needs, and what the tsan preset builds: all programs; the tests labelled concurrent.
add_custom_target(shardmesh_programs)
add_custom_target(shardmesh_concurrent_tests)

# What every target of ours is compiled with: the source root as include path, C++20, and strict warnings.
# One of them is off: gcc 12 sees uninitialised values in Abseil's inlined containers where there are none.
function(shardmesh_target_defaults target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardmesh>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Woverloaded-virtual -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    $<$<BOOL:${SHARDMESH_WERROR}>:-Werror>)
  if(SHARDMESH_FUZZED AND SHARDMESH_SANITIZE MATCHES fuzzer)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# What every program of ours is linked with, beyond that: under ThreadSanitizer, what tells it of the synchronisation
# inside the libraries that are not instrumented.
function(shardmesh_program_defaults target)
  shardmesh_target_defaults(${target})
  if(SHARDMESH_SANITIZE STREQUAL thread)
    if(NOT TARGET shardmesh_tsan_grpc)
      add_library(shardmesh_tsan_grpc OBJECT ${PROJECT_SOURCE_DIR}/tests/testing/tsan_grpc.cc)
      target_compile_options(shardmesh_tsan_grpc PRIVATE -fno-sanitize=thread)
      target_link_libraries(shardmesh_tsan_grpc PUBLIC gRPC::grpc++ absl::synchronization ${CMAKE_DL_LIBS})
    endif()
    target_link_libraries(${target} PRIVATE shardmesh_tsan_grpc)
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  endif()
endfunction()

# What is compiled for longer than it runs is not optimised under the sanitizers: optimising what they add is half of such
# a build. Tests never are.
function(shardmesh_compile_quickly target)
  if(SHARDMESH_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# shardmesh_compile_together(TARGET apart...): with SHARDMESH_UNITY eight sources are compiled as one, which reads their
# headers and makes their templates once. It is for builds that compile everything and nothing twice: the sanitizers', CI's
# and the image's. Apart stay sources with a name in an unnamed namespace that another source of the target has too.
function(shardmesh_compile_together target)
  if(SHARDMESH_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# shardmesh_library(NAME sharding SRCS ... [DEPS public...] [PRIVATE_DEPS ...] [APART ...]) defines shardmesh::NAME.
function(shardmesh_library)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS;PRIVATE_DEPS;APART" ${ARGN})
  set(target shardmesh_${arg_NAME})
  add_library(${target} STATIC ${arg_SRCS})
  add_library(shardmesh::${arg_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME})
  shardmesh_compile_together(${target} ${arg_APART})
  shardmesh_target_defaults(${target})
  target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
endfunction()

# shardmesh_binary(NAME shardmesh-worker SRCS ... DEPS ...) defines an installed program.
function(shardmesh_binary)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  shardmesh_program_defaults(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS})
  add_dependencies(shardmesh_programs ${arg_NAME})
  install(TARGETS ${arg_NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endfunction()

# shardmesh_test(NAME sharding_test SRCS ... DEPS ... [APART ...] LABELS unit [TIMEOUT s]) defines a GoogleTest program, each
# of whose tests ctest runs by name; the sanitizers' presets and CI run those without clusters in four parts. Labels: unit, or
# integration = starts clusters, one test of a program at a time; concurrent = also runs under TSan; long = only with
# ./dev test --long.
function(shardmesh_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "SRCS;DEPS;APART;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${arg_NAME} ${arg_SRCS})
  shardmesh_program_defaults(${arg_NAME})
  shardmesh_compile_together(${arg_NAME} ${arg_APART})
  target_compile_options(${arg_NAME} PRIVATE -O0)
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} shardmesh::test_main GTest::gmock GTest::gtest)
  target_compile_definitions(${arg_NAME} PRIVATE SHARDMESH_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    SHARDMESH_BINARY_DIR="${CMAKE_BINARY_DIR}/bin")
  if("concurrent" IN_LIST arg_LABELS)
    add_dependencies(shardmesh_concurrent_tests ${arg_NAME})
  endif()
  include(GoogleTest)
  # One label of several words, since gtest_discover_tests takes lists apart; ctest -L and the presets match a word of it.
  list(JOIN arg_LABELS "+" labels)
  if("integration" IN_LIST arg_LABELS)
    # Tests with clusters take turns, from the start on: what they do most is wait, while others run beside them.
    gtest_discover_tests(${arg_NAME} DISCOVERY_MODE PRE_TEST
      PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT} RESOURCE_LOCK ${arg_NAME} COST 1000)
  elseif(SHARDMESH_SANITIZE OR SHARDMESH_UNITY)
    # Beginning and ending a process costs more there than most tests do: a process runs a quarter of the program's. CI
    # runs thousands of tests.
    foreach(shard RANGE 3)
      add_test(NAME ${arg_NAME}.${shard} COMMAND ${arg_NAME})
      set_tests_properties(${arg_NAME}.${shard} PROPERTIES LABELS "${labels}" TIMEOUT 900
        ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${shard}")
    endforeach()
  else()
    gtest_discover_tests(${arg_NAME} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT})
  endif()
endfunction()

# shardmesh_embed_texts(TARGET shardmesh_x HEADER folder/texts.h NAMESPACE ns TEXTS kName=file ...) adds a source to a
# target that defines the constants of the header: the texts of files of this folder.
function(shardmesh_embed_texts)
  cmake_parse_arguments(arg "" "TARGET;HEADER;NAMESPACE" "TEXTS" ${ARGN})
  string(REGEX REPLACE "\\.h$" ".cc" output "${PROJECT_BINARY_DIR}/generated/${arg_HEADER}")
  set(texts)
  set(files)
  foreach(text IN LISTS arg_TEXTS)
    string(REGEX MATCH "^([^=]+)=(.+)$" matched "${text}")
    list(APPEND texts "${CMAKE_MATCH_1}=${CMAKE_CURRENT_SOURCE_DIR}/${CMAKE_MATCH_2}")
    list(APPEND files "${CMAKE_CURRENT_SOURCE_DIR}/${CMAKE_MATCH_2}")
  endforeach()
  list(JOIN texts "," texts)
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DHEADER=${arg_HEADER}" "-DNAMESPACE=${arg_NAMESPACE}"
      "-DTEXTS=${texts}" -P "${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake"
    DEPENDS ${files} "${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake"
    VERBATIM)
  target_sources(${arg_TARGET} PRIVATE "${output}")
endfunction()
