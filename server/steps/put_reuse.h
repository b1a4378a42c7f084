// Finds arrays that have the elements of a put's tensors already, and orders the workers to copy
// them where they lie in another layout.
#ifndef SHARDMESH_SERVER_STEPS_PUT_REUSE_H_
#define SHARDMESH_SERVER_STEPS_PUT_REUSE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/pinned_array.h"
#include "server/steps/transfers.h"

namespace shardmesh::server {

// Limit for the ranks of each mesh if only some ranks copy a tensor. Each rank then gets orders of
// its own, which name the workers of both meshes.
inline constexpr int64_t kMaxPartlyCopiedRanks = 256;
// Limit for the bytes of all such orders of one put: those of CopyOrderBytes for each copied tile,
// and for each mesh that is copied from kDeviceBytes for each pair of a rank and a source worker. A
// rank with more than 1 MiB of orders gets the workers again with each further 1 MiB.
inline constexpr int64_t kMaxPartlyCopiedBytes = int64_t{128} << 20;
// The bytes of a worker in such orders: its identity, its addresses, and its number.
inline constexpr int64_t kDeviceBytes = 1024;

// The objects that the finder uses; they outlive it.
struct PutReuseParts {
  ArrayRegistry* registry = nullptr;
  const Membership* membership = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  // Null: the workers cannot copy.
  FillTransport* fill = nullptr;
  // False: the put is only checked, which counts as no use of the cache (ArrayRegistry::PinFound).
  bool is_use = true;
  int64_t max_partly_copied_bytes = kMaxPartlyCopiedBytes;
};

// A client's claim that an array has the elements of a tensor. Nobody trusts it: see ClaimedArray.
struct ContentClaim {
  std::string array_id;
  // The SHA-256 of each claimed tile, 32 bytes each, by the tiles' numbers (Tiling::ReplicaGroup).
  std::vector<std::string> tile_sha256;
  // The numbers of the claimed tiles, rising. Empty: the claim is about all distinct tiles.
  std::vector<int64_t> equal_tiles = {};
};

// A claim about an available array of the tensor's type and shape. It is true if the workers
// compute the same digests of all claimed tiles that they hold.
struct ClaimedArray {
  size_t item = 0;  // of the put
  std::shared_ptr<const PinnedArray> array;
  // By the numbers of all distinct tiles; empty for a tile that is not claimed. At least one is
  // claimed.
  std::vector<std::string> tile_sha256;
};

// Returns the ranks of `to` that need elements of tiles of `from` that are not claimed, rising.
// Both arrays have the same shape; `tile_sha256` is as in ClaimedArray. Nullopt: all ranks need
// such elements, or a mesh has more than kMaxPartlyCopiedRanks ranks.
std::optional<std::vector<int64_t>> RanksToSend(const ArrayDescriptor& from,
                                                const ArrayDescriptor& to,
                                                const std::vector<std::string>& tile_sha256);

// Returns an upper bound for the bytes of the order to copy one tile of `to` from the array `from`.
// The order has the descriptor of `to`, and that of `from` twice: the second one is in the token.
int64_t CopyOrderBytes(const ArrayDescriptor& from, const ArrayDescriptor& to);

// Finds arrays for the tensors of one put. Not thread-safe. Takes some microseconds for a tensor,
// and more for one in a new layout of its origin: do not use it on a gRPC thread.
class PutReuse {
 public:
  explicit PutReuse(const PutReuseParts& parts);

  // Sets `item.reused` if an available array has the elements of the item's tensor:
  // - An array that is what the put would make becomes the item's array: layout, requested spec and
  //   durability are the same, it wants at least as many replicas, and the item has a name. A put
  //   that asks for one replica takes no array with two: the copy has no companion. An array from
  //   the cache wants as many replicas as the item from then on, and lacks the second one.
  //   Preferred is the array that the name points to.
  // - From another array the workers copy. Preferred is the one from which they send least.
  void Find(PutItem& item);

  // Returns the claim with its array, which stays alive as long as the result. Nullopt if the array
  // cannot have the elements of the item's tensor, or is no longer available; and if no rank could
  // copy its tile from the claimed tiles. `number`: of the item in the put.
  std::optional<ClaimedArray> PinClaimed(ContentClaim claim, size_t number, const PutItem& item);
  // Sets `item.reused` to the array of a claim that is true, as Find does. If not all tiles are
  // claimed, sets `item.sent_ranks` to the ranks that need elements of others. No effect if the
  // array is no longer available, if the workers cannot copy it, or if the put's orders would have
  // more than `max_partly_copied_bytes`.
  void Use(const ClaimedArray& claimed, PutItem& item);

 private:
  // A layout of an array, in the form of a text.
  static std::string LayoutOf(const ArrayDescriptor& array);

  bool IsWhatThePutMakes(const Array& array, const PutItem& item);
  // Whether an array that wants so many replicas has those of the item.
  static bool HasReplicas(int64_t replicas, const PutItem& item);
  // Pins the array and sets `item.reused`. If the array `is_same` as the one that the put would
  // make, also sets the item's definition. Returns false and changes nothing in the item if the
  // array no longer exists, or if another put has taken it and wants other replicas.
  bool Take(ArrayPtr array, bool is_same, PutItem& item);
  // Whether the workers of the mesh keep arrays on disk.
  bool IsDurable(const std::string& mesh_id);
  bool CanFill(const std::string& mesh_id);
  // Returns the bytes that workers send to make `to` from `from`; nullopt: they cannot.
  std::optional<int64_t> MovedBytes(const ArrayDescriptor& from, const ArrayDescriptor& to);

  const PutReuseParts parts_;
  const std::shared_ptr<const MembershipView> view_;
  std::map<std::string, bool> durable_;   // by mesh
  std::map<std::string, bool> can_fill_;  // by mesh
  // By the layouts of two arrays.
  absl::flat_hash_map<std::string, std::optional<int64_t>> moved_bytes_;
  // Of the items for which Use has set `sent_ranks`: the bytes of their orders, and the meshes from
  // which their tiles are copied.
  int64_t partly_copied_bytes_ = 0;
  std::set<std::string> partly_copied_meshes_;
  // The ids of arrays of items for which Take has set `lacks_second_copy`.
  std::set<std::string> lacking_;
};

// A put some of whose tensors are copied from other arrays.
struct ReuseFill {
  std::string transfer_id = {};
  std::string session_id = {};
  int64_t term = 0;
  // Signs the tokens with which workers fetch from one another; see rpc/transfer_token.h.
  std::string token_key = {};
  absl::Time expire_time = {};  // of the tokens
};

// Returns the workers of the meshes that the items are copied from, by mesh. Errors of
// MeshEndpoints::Endpoints. FAILED_PRECONDITION (MESH_INCOMPLETE), with a retry delay: a worker of
// such a mesh was lost.
using ReuseSources = std::map<std::string, std::vector<RankEndpoint>>;
absl::StatusOr<ReuseSources> FindReuseSources(absl::Span<const PutItem> items,
                                              const MeshEndpoints& endpoints);

// Sends each of the workers, one for each rank, the order to copy its tiles of reused items.
// Errors: those of FillTransport::SendFill.
absl::Status SendReuseFill(const ReuseFill& fill, absl::Span<const PutItem> items,
                           absl::Span<const RankEndpoint> workers, const ReuseSources& sources,
                           FillTransport* transport);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_REUSE_H_
