// HandoverInbox: one thread that polls the sockets of clients on this host.
#include "worker/service/handover_inbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/descriptor_limit.h"
#include "process/random_bytes.h"
#include "process/sealed/local_socket.h"
#include "rpc/stream/handover.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// How long the thread rests if the process has no descriptor left for a connection, which stays in
// the kernel's queue.
constexpr absl::Duration kDescriptorPause = absl::Milliseconds(50);

class HandoverInboxImpl final : public HandoverInbox {
 public:
  HandoverInboxImpl(const Options& options, LocalListener listener, FileDescriptor wake)
      : options_(options),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        thread_([this] { Run(); }) {}

  ~HandoverInboxImpl() override {
    stopped_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  const std::string& socket() const override { return listener_.name; }

  FileDescriptor Take(std::string_view id) override {
    absl::MutexLock lock(&mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end()) return {};
    FileDescriptor memory = std::move(found->second.memory);
    kept_.erase(found);
    return memory;
  }

  void CountStaged(int64_t bytes) override { staged_bytes_.fetch_add(bytes); }

  Counters counters() const override {
    absl::MutexLock lock(&mutex_);
    return {.staged_bytes = staged_bytes_.load(),
            .refused = refused_.load(),
            .kept = static_cast<int64_t>(kept_.size())};
  }

 private:
  struct Kept {
    FileDescriptor memory;
    int socket = -1;  // the connection that brought it
  };

  void Run();
  void Accept();
  // Takes a message of a connection. Returns false if the connection is to be closed.
  bool Hear(int socket);
  // Keeps the memory. Returns what to answer; empty if the id is kept already.
  std::string_view Keep(std::string id, FileDescriptor memory, int socket);
  // Closes what the connection has brought and nobody has taken.
  void Drop(int socket);

  const Options options_;
  const LocalListener listener_;
  const FileDescriptor wake_;
  std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> staged_bytes_ = 0;
  std::atomic<int64_t> refused_ = 0;

  mutable absl::Mutex mutex_;
  std::map<std::string, Kept, std::less<>> kept_ ABSL_GUARDED_BY(mutex_);

  std::list<FileDescriptor> connections_;  // used only by the thread
  std::thread thread_;                     // last: it uses the members above
};

void HandoverInboxImpl::Run() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.socket.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : connections_) polled.push_back({socket.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (stopped_.load()) return;
    size_t place = 2;
    for (auto socket = connections_.begin(); socket != connections_.end(); ++place) {
      if (polled[place].revents == 0 || Hear(socket->get())) {
        ++socket;
        continue;
      }
      Drop(socket->get());
      socket = connections_.erase(socket);
    }
    if (polled[1].revents != 0) Accept();
  }
}

void HandoverInboxImpl::Accept() {
  FileDescriptor socket(
      accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EMFILE || errno == ENFILE) absl::SleepFor(kDescriptorPause);
    return;
  }
  if (!IsOfUser(socket.get(), options_.user) || connections_.size() >= options_.max_connections ||
      socket.get() >= FirstReservedDescriptor()) {
    refused_.fetch_add(1);
    return;
  }
  connections_.push_back(std::move(socket));
}

bool HandoverInboxImpl::Hear(int socket) {
  absl::StatusOr<ReceivedDescriptors> received = ReceiveDescriptors(socket);
  if (!received.ok()) {
    // A client that has ended is no error. Nor is a lack of descriptors, of which the client is
    // told: it sends this tile in pieces.
    if (absl::IsUnavailable(received.status())) return false;
    refused_.fetch_add(1);
    return absl::IsResourceExhausted(received.status()) &&
           SendDescriptors(socket, rpc::kHandoverFull, {}).ok();
  }
  if (received->text.size() != rpc::kHandoverIdBytes || received->fds.size() != 1) return false;
  const std::string_view answer =
      Keep(std::move(received->text), std::move(received->fds.front()), socket);
  if (answer.empty()) return false;
  if (answer == rpc::kHandoverFull) refused_.fetch_add(1);
  return SendDescriptors(socket, answer, {}).ok();
}

std::string_view HandoverInboxImpl::Keep(std::string id, FileDescriptor memory, int socket) {
  absl::MutexLock lock(&mutex_);
  const auto of_socket = std::count_if(kept_.begin(), kept_.end(), [socket](const auto& each) {
    return each.second.socket == socket;
  });
  if (static_cast<size_t>(of_socket) >= options_.max_kept ||
      memory.get() >= FirstReservedDescriptor()) {
    return rpc::kHandoverFull;
  }
  const bool is_new = kept_.try_emplace(std::move(id), Kept{std::move(memory), socket}).second;
  return is_new ? rpc::kHandoverKept : std::string_view();
}

void HandoverInboxImpl::Drop(int socket) {
  std::vector<FileDescriptor> dropped;  // closed without the lock: that may free much memory
  absl::MutexLock lock(&mutex_);
  for (auto each = kept_.begin(); each != kept_.end();) {
    if (each->second.socket != socket) {
      ++each;
      continue;
    }
    dropped.push_back(std::move(each->second.memory));
    each = kept_.erase(each);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoverInbox>> HandoverInbox::Start(const Options& options) {
  SHARDMESH_ASSIGN_OR_RETURN(LocalListener listener,
                             ListenLocally(StrCat("shardmesh-handover-", RandomId())));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return absl::UnavailableError(
        StrCat("no wake-up descriptor for clients on this host: ", std::strerror(errno)));
  }
  return std::make_unique<HandoverInboxImpl>(options, std::move(listener), std::move(wake));
}

}  // namespace shardmesh::worker
