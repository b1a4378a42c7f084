// Many random products and graphs on simulated devices.
#include <gtest/gtest.h>

#include "tests/testing/random_cases.h"
#include "tests/unit/program/program_checks.h"

namespace shardmesh {
namespace {

TEST(RandomProgramsLongTest, TwentyThousandProductsComputeAndSendAsForecast) {
  ExpectRandomProducts(test::RandomCasesOf(20'000));
}

TEST(RandomProgramsLongTest, TenThousandGraphsComputeAndSendAsForecast) {
  ExpectRandomGraphs(test::RandomCasesOf(10'000));
}

}  // namespace
}  // namespace shardmesh
