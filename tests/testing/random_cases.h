// How many random cases a test runs, and with which seeds.
#ifndef SHARDMESH_TESTS_TESTING_RANDOM_CASES_H_
#define SHARDMESH_TESTS_TESTING_RANDOM_CASES_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>

namespace shardmesh::test {

// Case i has the seed first_seed + i.
struct RandomCases {
  uint32_t first_seed = 1;
  int64_t count = 0;
};

// Returns cases from seed 1 on, and prints their seeds. The environment may say otherwise: a test
// runs SHARDMESH_RANDOM_CASES cases from the seed SHARDMESH_RANDOM_SEED on. To run case 17 alone:
//   SHARDMESH_RANDOM_SEED=17 SHARDMESH_RANDOM_CASES=1 program_test --gtest_filter=RandomProducts*
inline RandomCases RandomCasesOf(int64_t count) {
  RandomCases cases = {.count = count};
  if (const char* const seed = std::getenv("SHARDMESH_RANDOM_SEED"); seed != nullptr) {
    cases.first_seed = static_cast<uint32_t>(std::strtoul(seed, nullptr, 10));
  }
  if (const char* const given = std::getenv("SHARDMESH_RANDOM_CASES"); given != nullptr) {
    cases.count = std::strtol(given, nullptr, 10);
  }
  std::cout << cases.count
            << " random cases, the first with SHARDMESH_RANDOM_SEED=" << cases.first_seed << "\n";
  return cases;
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_RANDOM_CASES_H_
