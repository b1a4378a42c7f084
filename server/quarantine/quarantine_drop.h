// A drop of quarantined arrays (tiles that workers put aside) and of arrays that are held without a
// name, and the errors of a drop that fails.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_

#include <compare>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "server/quarantine/quarantine_away.h"
#include "server/quarantine/quarantine_calls.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

// The part of an array that one worker has in quarantine.
struct Part {
  std::string identity;
  std::string array_id;

  std::string ToString() const { return StrCat(array_id, " on ", identity); }
  friend auto operator<=>(const Part&, const Part&) = default;
};

// A drop of some arrays while it runs. A drop first asks the workers which parts of the arrays they
// have.
struct Drop {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::DropQuarantinedRequest* const request;
  v1::DropQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  std::map<Part, std::string> listed = {};  // by part: the mesh of the array; empty: not known
  // Only with `validate_only`: the listed parts, as the response shows them.
  std::map<Part, v1::QuarantinedArray> described = {};
  // Workers whose list has further pages. The value is the id of the last array in the pages so
  // far.
  std::map<std::string, std::string> unlisted = {};
  std::set<Part> dropped = {};
  std::map<std::string, absl::Status> failed = {};  // by worker that failed: its error
  // Workers that reported which parts they dropped, even if they dropped only some of the parts.
  std::set<std::string> answered = {};
  AwayWorkers unreached = {};  // only with `even_partly`: workers without an answer
  // Arrays that are held without a name, and that only the grace period keeps.
  std::vector<UnnamedArray> unnamed = {};
  std::vector<std::string> released = {};  // ids of those of `unnamed` that were released
  int64_t unnamed_bytes = 0;               // of the parts of `unnamed` in the response
};
using DropPtr = std::shared_ptr<Drop>;

// Records the worker as failed. Returns whether the call continues without the worker, which it
// does only with `even_partly`. In that case also records the worker as unreached.
bool GoOnWithout(const std::string& identity, const absl::Status& why, Drop* drop);

// Returns the error, extended by the parts that were dropped and those that remain. No client
// repeats the call automatically, so the caller sees this error.
absl::Status DescribeDrop(const Drop& drop, const absl::Status& error);

// The error of a drop that continued without the failed workers, and dropped nothing.
absl::Status AllFailed(const Drop& drop);

// Checks that the drop may begin, and finds `unnamed`. Requires that nothing was dropped yet, and
// that all live workers of `view` were asked.
absl::Status CheckDrop(const MembershipView& view, Drop* drop);

// The error for an array without a name that more than the grace period keeps.
absl::Status InUse(const Drop& drop, const std::string& array_id);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_DROP_H_
