// Shows whether a process has asked the kernel for huge pages.
#ifndef SHARDMESH_TESTS_TESTING_HUGE_PAGES_H_
#define SHARDMESH_TESTS_TESTING_HUGE_PAGES_H_

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace shardmesh::test {

// Whether the mapping that contains the address asks for huge pages, or the host has none.
inline bool AsksForHugePages(const void* address) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled")) return true;
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uint64_t>(address);
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      is_inside = begin <= at && at < end;
    } else if (is_inside && line.rfind("VmFlags:", 0) == 0) {
      return (line + " ").find(" hg ") != std::string::npos;
    }
  }
  return false;
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_HUGE_PAGES_H_
