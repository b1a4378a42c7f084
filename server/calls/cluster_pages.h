// Pages of answers about the cluster: their sizes, and the tokens that say where a page begins.
#ifndef SHARDMESH_SERVER_CALLS_CLUSTER_PAGES_H_
#define SHARDMESH_SERVER_CALLS_CLUSTER_PAGES_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rpc/call.h"

namespace shardmesh::server {

// The maximum number of bytes of a page before its last item: half of a message's limit, which
// leaves room for that item.
inline constexpr int64_t kPageBytes = rpc::kMaxControlMessageBytes / 2;

// Returns the number of items on a page: `asked`, or `otherwise` if `asked` is 0. INVALID_ARGUMENT
// (BAD_FIELD): `asked` is out of range.
absl::StatusOr<int64_t> PageSize(int32_t asked, int64_t otherwise);

// The number of items and bytes that still fit the page.
class PageBudget {
 public:
  explicit PageBudget(int64_t items, int64_t bytes = kPageBytes) : items_(items), bytes_(bytes) {}

  bool is_spent() const { return items_ <= 0 || bytes_ <= 0; }
  void Spend(const google::protobuf::Message& item) {
    --items_;
    bytes_ -= static_cast<int64_t>(item.ByteSizeLong());
  }

 private:
  int64_t items_;
  int64_t bytes_;
};

// Parses a page token of a list in rising order: the number of the last item on the previous page;
// 0 for the first page. INVALID_ARGUMENT (BAD_FIELD): the token is malformed.
absl::StatusOr<int64_t> NumberOfPageToken(const std::string& token);

// The position at which a page of the cluster's status begins. The token `m/RANK/MESH` names a mesh
// and the first rank to list. The token `w/IDENTITY` means the workers after the worker IDENTITY.
struct StatusPosition {
  bool in_meshes = true;
  std::string name;  // of the mesh or the worker
  int64_t rank = 0;

  static std::string OfMesh(std::string_view name, int64_t rank);
  static std::string OfWorker(std::string_view identity);
  // INVALID_ARGUMENT (BAD_FIELD): the token is malformed.
  static absl::StatusOr<StatusPosition> Parse(std::string_view token);
};

// The position at which a page of links begins. The token `w/INDEX` holds the index of the page's
// first worker in the list of workers. The token `l/INDEX/IDENTITY` holds the index of the page's
// first link among the links whose lower identity is IDENTITY.
struct LinkPosition {
  bool in_workers = true;
  int64_t index = 0;
  std::string identity;

  static std::string OfWorker(int64_t index);
  static std::string OfLink(std::string_view identity, int64_t index);
  // INVALID_ARGUMENT (BAD_FIELD): the token is malformed.
  static absl::StatusOr<LinkPosition> Parse(std::string_view token);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_CLUSTER_PAGES_H_
