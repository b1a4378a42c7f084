// Messages as raw bytes, for streams that tell a broken message from their end.
//
// gRPC reports a message that does not parse exactly as it reports the half-close: a read that
// failed. A reactor over generated messages would take what came before for everything. Hence
// streams of the client's take bytes (`WithRawCallbackMethod_...`), and parse them here.
#ifndef SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
#define SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace shardmesh::rpc {

// Takes a message out of its bytes, and lets go of them. INVALID_ARGUMENT (BAD_FIELD) where they
// are no such message: the path of the first field at fault, such as `header.mesh.name`, if one can
// be told, else `message`; and what is wrong, such as a string that is not UTF-8. `to` is then
// unspecified. Thread-safe.
absl::Status ParseMessage(grpc::ByteBuffer* from, google::protobuf::Message* to);

// The inverse; of any message. Thread-safe.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// The error of bytes that are no message of this type, where they are not at hand any more.
absl::Status UnparsedMessage(const google::protobuf::Descriptor& type);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_MESSAGE_BYTES_H_
