// Converts puts between wire and domain types: the requests of BeginPut, and its answer.
#ifndef SHARDMESH_SERVER_CODEC_PUT_CODEC_H_
#define SHARDMESH_SERVER_CODEC_PUT_CODEC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/caller.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/put_memory.h"
#include "server/steps/put_plan.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

void Encode(const RankEndpoint& from, v1::DeviceEndpoint* to);

// INVALID_ARGUMENT (BAD_FIELD) names the malformed field.
absl::StatusOr<PutHeader> Decode(const v1::BeginPutHeader& from);
absl::StatusOr<PutTensor> Decode(const v1::PutTensor& from);

// Adds the messages of one BeginPut call to the plan of that put. Not thread-safe.
class PutRequests {
 public:
  explicit PutRequests(const PutPlanParts& parts)
      : definition_store_(parts.definition_store), plan_(parts) {}

  // Returns whether Take of this message may be too slow for a gRPC reaction.
  bool TakesLong(const v1::BeginPutRequest& request) const;
  // Adds one message. CANCELLED: `is_cancelled`, which Take polls, returned true.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): too many tensors. Other errors are those of PutPlan, and
  // name the field and the tensor.
  absl::Status Take(const v1::BeginPutRequest& request, const rpc::Caller& caller,
                    const std::function<bool()>& is_cancelled);

  PutPlan& plan() { return plan_; }
  // PutMemory identifies the request by its key and a digest of all its messages.
  std::string key() const;
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  absl::Status TakeTensor(const v1::PutTensor& tensor, const std::function<bool()>& is_cancelled);

  const DefinitionStore* const definition_store_;
  PutPlan plan_;
  std::string fingerprint_;
  int64_t tensors_ = 0;
};

// The messages of an answer to BeginPut. Next makes one message at a time and signs the tokens in
// it, so call Next only when the message is about to be sent.
class PutAnswer {
 public:
  // `token_key` signs the transfer tokens; see rpc/transfer_token.h.
  PutAnswer(int64_t term, std::string token_key, BegunPutPtr put)
      : term_(term), token_key_(std::move(token_key)), put_(std::move(put)) {}

  bool is_at_end() const { return next_ == put_->items.size(); }
  // Returns the next message, beginning with the first.
  v1::BeginPutResponse Next();

 private:
  const int64_t term_;
  const std::string token_key_;
  const BegunPutPtr put_;
  size_t next_ = 0;  // index in put_->items
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_PUT_CODEC_H_
