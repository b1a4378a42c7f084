// Messages as raw bytes, for streams that must distinguish a malformed message from the end of the
// stream.
//
// gRPC reports a message that does not parse in the same way as the half-close: as a failed read. A
// reactor over generated messages would therefore take the earlier messages for the complete
// stream. For this reason client streams carry bytes (`WithRawCallbackMethod_...`), and their
// reactors parse the bytes here.
#ifndef SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
#define SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace shardmesh::rpc {

// Parses a message from its bytes, and releases the bytes. INVALID_ARGUMENT (BAD_FIELD): the bytes
// are malformed. The error names the fault, such as a string that is not UTF-8, and the path of the
// first faulty field, such as `header.mesh.name`. If no field can be determined, the path is
// `message`. After an error `to` is unspecified. Thread-safe.
absl::Status ParseMessage(grpc::ByteBuffer* from, google::protobuf::Message* to);

// The inverse of ParseMessage, for any message. Thread-safe.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// The error for malformed bytes of this message type, if the bytes are no longer available.
absl::Status UnparsedMessage(const google::protobuf::Descriptor& type);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
