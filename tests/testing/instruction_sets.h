// Runs a test with the loops of each instruction set that this CPU has.
#ifndef SHARDMESH_TESTS_TESTING_INSTRUCTION_SETS_H_
#define SHARDMESH_TESTS_TESTING_INSTRUCTION_SETS_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "hwy/targets.h"

namespace shardmesh::test {

// Calls `body(name)` once for each instruction set for which loops are compiled and that this CPU
// has. During a call, this process selects the loops of that set. Loops selected earlier stay as
// they are. No other thread may select loops meanwhile.
template <typename Body>
void OnEachInstructionSet(Body body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_INSTRUCTION_SETS_H_
