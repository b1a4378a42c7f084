// The form of messages to workers: encoded once, shared by all streams that carry the message.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_MESSAGE_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_MESSAGE_H_

#include <memory>
#include <string>

namespace shardmesh::server {

// The bytes of an internal::v1::AttachResponse. Immutable, so all streams share them without a
// copy.
using WorkerMessage = std::shared_ptr<const std::string>;

// Returns a message in two parts as one.
inline WorkerMessage Joined(const WorkerMessage& head, const WorkerMessage& tail) {
  return std::make_shared<const std::string>(*head + *tail);
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_MESSAGE_H_
