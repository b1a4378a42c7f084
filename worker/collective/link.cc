// Tag: creates tags and checks their bounds.
#include "worker/collective/link.h"

#include "status/str_cat.h"

namespace shardmesh::worker {

absl::StatusOr<Tag> Tag::Create(int64_t step, int64_t op, int64_t round) {
  if (step < 0) {
    return absl::InvalidArgumentError(StrCat("step ", step, " is negative"));
  }
  if (op < 0 || op > kMaxOp) {
    return absl::InvalidArgumentError(
        StrCat("op ", op, " of step ", step, " is not between 0 and ", kMaxOp));
  }
  if (round < 0 || round > kMaxRound) {
    return absl::InvalidArgumentError(StrCat("round ", round, " of op ", op, " of step ", step,
                                             " is not between 0 and ", kMaxRound));
  }
  return Tag(step, static_cast<int32_t>(op), static_cast<int32_t>(round));
}

std::string Tag::ToString() const {
  return StrCat("step ", step_, ", op ", op_, ", round ", round_);
}

}  // namespace shardmesh::worker
