// A drop of arrays, and the report on a drop that ends with an error.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_

#include <compare>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "server/quarantine/quarantine_away.h"
#include "server/quarantine/quarantine_calls.h"
#include "server/state/membership.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

// A part of an array that a worker has in quarantine.
struct Part {
  std::string identity;
  std::string array_id;

  std::string ToString() const { return StrCat(array_id, " on ", identity); }
  friend auto operator<=>(const Part&, const Part&) = default;
};

// The drop of some arrays. It first asks which workers have parts of them.
struct Drop {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::DropQuarantinedRequest* const request;
  v1::DropQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  std::map<Part, std::string> listed = {};  // the mesh on which it lies; empty: not known
  // With `validate_only`: the listed parts, as the answer has them.
  std::map<Part, v1::QuarantinedArray> described = {};
  // Workers whose list has further pages, with the array that the next page begins after.
  std::map<std::string, std::string> unlisted = {};
  std::set<Part> dropped = {};
  std::map<std::string, absl::Status> failed = {};  // by worker
  std::set<std::string> answered = {};  // workers that said what they dropped, failed or not
  AwayWorkers unreached = {};           // with `even_partly`
};
using DropPtr = std::shared_ptr<Drop>;

// Goes on without the worker if the call has `even_partly`.
bool GoOnWithout(const std::string& identity, const absl::Status& why, Drop* drop);

// Returns the error with the parts dropped before it and the parts that remain. No client repeats
// the call automatically, so the caller sees this error.
absl::Status DescribeDrop(const Drop& drop, const absl::Status& error);

// The error of a drop that went on without the failed workers, and dropped nothing.
absl::Status AllFailed(const Drop& drop);

// Requires that nothing was dropped yet and that all live workers of the view were asked.
absl::Status CheckDrop(const MembershipView& view, Drop* drop);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_
