// Fuzzes definitions as they arrive, and as they are read from the store: what is accepted, sent
// again, is received as the same.
#include <set>
#include <string>
#include <string_view>

#include "rpc/codec/tree_decoder.h"
#include "server/state/definitions.h"
#include "server/state/stored_tree.h"
#include "sharding/shape.h"
#include "status/reason.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/fuzz/wire_round_trip.h"

namespace shardmesh::fuzz {
namespace {

template <typename Message>
void CheckMessage(const std::string& bytes) {
  Message message;
  if (message.ParseFromString(bytes)) {
    RequireRoundTrip<Message>(rpc::Decode(message));
  }
}

// A tree that is kept has what questions rely on.
void CheckTree(const server::StoredTree& tree) {
  v1::StoredTree summary;
  tree.EncodeSummary(&summary);
  const absl::Span<const rpc::TreeTensor> tensors = tree.tensors();
  Require(!tensors.empty() && tensors.size() <= static_cast<size_t>(rpc::kMaxStoredTreeTensors) &&
          summary.tensor_count() == static_cast<int64_t>(tensors.size()));
  std::set<std::string_view> names;
  int64_t parameters = 0;
  for (const rpc::TreeTensor& tensor : tensors) {
    Require(!tensor.name.empty() && tensor.name.size() <= rpc::TreeDecoder::kMaxNameBytes);
    Require(names.insert(tensor.name).second);
    Require(tensor.axes == nullptr || tensor.spec == nullptr);
    const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
    Require(elements.ok());
    parameters += *elements;
  }
  Require(summary.parameters() == parameters && summary.bytes() >= 0);
}

// As the store has them: an EntryValue of any kind.
void CheckStored(const std::string& bytes) {
  const absl::StatusOr<server::DefinitionValue> value =
      server::DefinitionStore::DecodeValue(bytes, kDefaultMinSize);
  if (!value.ok()) {
    Require(value.status().code() == absl::StatusCode::kInvalidArgument);
    Require(ReasonOf(value.status()) != Reason::kUnspecified);
    return;
  }
  if (const auto* tree = std::get_if<std::shared_ptr<const server::StoredTree>>(&*value)) {
    CheckTree(**tree);
  }
}

}  // namespace

void Check(std::string_view input) {
  const std::string bytes(input);
  CheckMessage<v1::MeshDefinition>(bytes);
  CheckMessage<v1::PartitionAxis>(bytes);
  CheckMessage<v1::RuleSet>(bytes);
  CheckStored(bytes);
}

}  // namespace shardmesh::fuzz
