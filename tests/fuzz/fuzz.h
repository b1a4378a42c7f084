// What the fuzz targets share: the entry point, and the check of a property.
#ifndef SHARDMESH_TESTS_FUZZ_FUZZ_H_
#define SHARDMESH_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string_view>

namespace shardmesh::fuzz {

// Ends the program, and so makes the input at hand a finding, if a property does not hold.
inline void Require(bool holds,
                    const std::source_location& place = std::source_location::current()) {
  if (!holds) {
    std::fprintf(stderr, "%s:%u: the property does not hold\n", place.file_name(), place.line());
    std::abort();
  }
}

// Each target defines this one.
void Check(std::string_view input);

}  // namespace shardmesh::fuzz

extern "C" inline __attribute__((used)) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                   size_t size) {
  shardmesh::fuzz::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}

#endif  // SHARDMESH_TESTS_FUZZ_FUZZ_H_
