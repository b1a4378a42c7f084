// Messages as raw bytes, for streams that distinguish a malformed message from their end.
//
// gRPC reports a message that does not parse exactly like the half-close: as a failed read. A
// reactor over generated messages would take the earlier messages for the complete stream. Client
// streams therefore carry bytes (`WithRawCallbackMethod_...`) and parse them here.
#ifndef SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
#define SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace shardmesh::rpc {

// Parses a message from its bytes, and releases them. INVALID_ARGUMENT (BAD_FIELD) if they are
// malformed. It names the path of the first faulty field, such as `header.mesh.name`, if one can be
// determined, else `message`; and the fault, such as a string that is not UTF-8. `to` is then
// unspecified. Thread-safe.
absl::Status ParseMessage(grpc::ByteBuffer* from, google::protobuf::Message* to);

// The inverse, for any message. Thread-safe.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// Returns the error for malformed bytes of this type that are no longer available.
absl::Status UnparsedMessage(const google::protobuf::Descriptor& type);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
