# Language, warnings, sanitizers, and the tools that make builds quicker where they are installed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(SHARDMESH_CCACHE ccache)
if(SHARDMESH_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHARDMESH_CCACHE})
endif()
find_program(SHARDMESH_MOLD mold)
if(SHARDMESH_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Debian's Abseil is built by a g++ that names templates by an older rule than clang does from version 18 on.
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  add_compile_options(-fclang-abi-compat=17)
endif()

if(SHARDMESH_SANITIZE)
  # Coverage for fuzzing is added by shardmesh_target_defaults, where a fuzz target links the code.
  string(REPLACE "fuzzer-no-link," "" sanitizers "${SHARDMESH_SANITIZE}")
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SHARDMESH_SANITIZE})
  if(SHARDMESH_SANITIZE MATCHES address)
    # These programs are large, and tests start thousands of them: without relocations each starts in a fifth less time.
    add_link_options(-no-pie)
  endif()
endif()
