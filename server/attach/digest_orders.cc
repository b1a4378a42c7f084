// Encodes the questions for digests, and passes on the answers.
#include "server/attach/digest_orders.h"

#include <optional>
#include <utility>

#include "server/attach/attach_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

absl::StatusOr<int64_t> DigestOrders::Send(WorkerStream* stream,
                                           const std::vector<WantedDigest>& tiles,
                                           TilesDigested* digested) {
  const std::optional<int64_t> number =
      table_.Register(stream, digested, kMaxOrders,
                      [&tiles](int64_t order_id) { return EncodeDigestTiles(order_id, tiles); });
  if (number.has_value()) return *number;
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(
                     StrCat(kMaxOrders, " questions for digests wait for workers, of at most ",
                            kMaxOrders, "; put again later")),
                 Reason::kOverloaded, {{fact::kHave, kMaxOrders}, {fact::kLimit, kMaxOrders}}),
      absl::Seconds(1));
}

void DigestOrders::Answer(const WorkerStream* stream, int64_t number,
                          const DigestTransport::Digests& digests) {
  std::optional<TilesDigested> digested = table_.Take(stream, number);
  if (digested.has_value()) (*std::move(digested))(digests);
}

}  // namespace shardmesh::server
