// Expectations: what the model says of an answer that it compares with another.
#ifndef SHARDMESH_TESTS_MODEL_EXPECTATIONS_H_
#define SHARDMESH_TESTS_MODEL_EXPECTATIONS_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "shardmesh/v1/precondition.pb.h"
#include "shardmesh/v1/spec.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/model/contract_caller.h"
#include "tests/model/dice.h"

namespace shardmesh::model {

// The model is violated.
inline absl::Status Violation(std::string_view what) { return absl::InternalError(ToAbsl(what)); }

inline absl::Status Unexpected(std::string_view what, const Message& request,
                               const absl::Status& got, std::string_view wanted) {
  return Violation(StrCat(what, " {", request.ShortDebugString().substr(0, 600), "} answered ",
                          got.ToString(), ", reason ", ReasonName(ReasonOf(got)), "; wanted ",
                          wanted));
}

// Encodes an expected version: 0 for any, -1 for none.
inline void Expect(int64_t version, v1::Precondition* to) {
  if (version < 0) {
    to->set_must_not_exist(true);
  } else if (version > 0) {
    to->set_version(version);
  }
}

// Returns whether a refusal says that the request is wrong, not that something broke.
inline bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

inline absl::Status Want(bool holds, std::string_view what, const Message& request,
                         const absl::Status& got, std::string_view wanted) {
  return holds ? absl::OkStatus() : Unexpected(what, request, got, wanted);
}

inline v1::PartitionSpec SpecOf(const std::vector<std::string>& axes) {
  v1::PartitionSpec spec;
  for (const std::string& axis : axes) {
    if (axis.empty()) {
      spec.add_dimensions()->set_constant(v1::AXIS_CONSTANT_NONE);
    } else {
      spec.add_dimensions()->set_name(axis);
    }
  }
  return spec;
}

inline v1::PartitionSpec RandomSpec(Dice& dice, size_t rank) {
  std::vector<std::string> axes;
  if (rank > 0 && dice.OneIn(2)) {
    axes.resize(static_cast<size_t>(dice.Below(static_cast<int64_t>(rank))) + 1);
    axes.back() = "tp";
  }
  return SpecOf(axes);
}

// Returns whether no server answered, or the answer does not tell the outcome.
inline bool HasNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

// Returns whether a fault explains the error: broken work, or missing participants or room.
inline bool IsExplained(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kFailedPrecondition:  // a rank or a tile is missing
    case absl::StatusCode::kNotFound:            // sessions and transfers end with a coordinator
    case absl::StatusCode::kAborted:             // a changed term or epoch, or a name being moved
    case absl::StatusCode::kDataLoss:            // the disk
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_EXPECTATIONS_H_
