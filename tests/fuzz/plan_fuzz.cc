// Fuzzes plans as workers get them: what is accepted passes the check of plans, and its bytes read
// as the same plan.
#include <string>
#include <string_view>

#include "program/plan_check.h"
#include "rpc/codec/plan_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const absl::StatusOr<Plan> plan = rpc::ParsePlanBytes(input);
  if (!plan.ok()) {
    Require(plan.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  Require(CheckPlan(*plan).ok());
  const std::string bytes = rpc::PlanBytes(*plan);
  const absl::StatusOr<Plan> again = rpc::ParsePlanBytes(bytes);
  // By their bytes, since a scale that is not a number does not equal itself.
  Require(again.ok() && rpc::PlanBytes(*again) == bytes);
}

}  // namespace shardmesh::fuzz
