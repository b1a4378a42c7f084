// Sockets between processes of one user on one host. Messages on these sockets carry descriptors.
#ifndef SHARDMESH_PROCESS_SEALED_LOCAL_SOCKET_H_
#define SHARDMESH_PROCESS_SEALED_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"

namespace shardmesh {

// A unix socket (SOCK_SEQPACKET, does not block) that accepts connections at an abstract name. Such
// a name needs no file. It exists in one network namespace, and ends with its socket.
struct LocalListener {
  FileDescriptor socket;
  std::string name;
};

// Listens at `name`, at most 107 bytes. If `name` is empty, the kernel chooses a name. UNAVAILABLE:
// another socket has the name, or the process cannot create a socket.
absl::StatusOr<LocalListener> ListenLocally(std::string_view name);

// Connects to the socket of that name. The returned socket does not block. UNAVAILABLE: nobody of
// this host and network namespace listens there, or too many connections wait there.
// PERMISSION_DENIED: the process that listens runs as another user than this process.
absl::StatusOr<FileDescriptor> ConnectLocally(std::string_view name);

// Returns whether the process at the other end of a connected unix socket runs as `user`: the
// effective user at the time of its connect or listen.
bool IsOfUser(int socket, uid_t user);

// Sends a message with at most 16 descriptors and 4 KiB of text over a connected socket of this
// kind. UNAVAILABLE if the other side is gone.
absl::Status SendDescriptors(int socket, std::string_view text, absl::Span<const int> fds);

struct ReceivedDescriptors {
  std::string text;
  std::vector<FileDescriptor> fds;
};
// Waits for a message. UNAVAILABLE if the other side is gone, or if the socket does not block and
// has no message. INVALID_ARGUMENT if the message has more than 4 KiB of text or more than 16
// descriptors; its descriptors are then closed. RESOURCE_EXHAUSTED if the message has more
// descriptors than this process has free.
absl::StatusOr<ReceivedDescriptors> ReceiveDescriptors(int socket);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_SEALED_LOCAL_SOCKET_H_
