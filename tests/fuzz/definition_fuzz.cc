// Fuzzes definitions as they arrive: what is accepted, sent again, is received as the same.
#include <string>
#include <string_view>

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

}  // namespace

void Check(std::string_view input) {
  const std::string bytes(input);
  CheckMessage<v1::MeshDefinition>(bytes);
  CheckMessage<v1::PartitionAxis>(bytes);
  CheckMessage<v1::RuleSet>(bytes);
}

}  // namespace shardmesh::fuzz
