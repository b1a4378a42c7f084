// ShmPeers: one thread that polls the sockets to all peers on this host.
#include "worker/shm/shm_peers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "process/sealed/local_socket.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

using Kind = ShmGreeting::Kind;

// The maximum number of connected sockets whose other end has not yet identified itself.
constexpr size_t kMaxStrangers = 64;
// How long the other end of a socket may take to identify itself.
constexpr absl::Duration kStrangerLimit = absl::Seconds(2);
constexpr absl::Duration kDescriptorPause = absl::Milliseconds(50);

absl::Status SocketError(std::string_view what) {
  return absl::UnavailableError(StrCat(what, ": ", std::strerror(errno)));
}

class ShmPeersImpl final : public ShmPeers {
 public:
  ShmPeersImpl(Options options, ShmAddress address, FileDescriptor listener, FileDescriptor wake)
      : options_(std::move(options)),
        address_(std::move(address)),
        listener_(std::move(listener)),
        wake_(std::move(wake)) {
    options_.arena->OnFreed([this](uint64_t segment_id) { OnFreed(segment_id); });
    thread_ = std::thread([this] { Run(); });
  }

  ~ShmPeersImpl() override {
    options_.arena->OnFreed(nullptr);
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    Wake();
    thread_.join();
    for (const auto& socket : sockets_) {
      if (socket->channel != nullptr) socket->channel->Close();
    }
  }

  const ShmAddress& address() const override { return address_; }

  void Expect(const std::string& peer, uint64_t link, const ShmAddress& theirs,
              bool dials) override {
    {
      absl::MutexLock lock(&mutex_);
      orders_.push_back({.peer = peer, .link = link, .theirs = theirs, .dials = dials});
    }
    Wake();
  }

  void Forget(const std::string& peer) override {
    {
      absl::MutexLock lock(&mutex_);
      orders_.push_back({.peer = peer});
    }
    Wake();
  }

 private:
  // A queued call of Expect, or of Forget if `link` is 0.
  struct Order {
    std::string peer;
    uint64_t link = 0;
    ShmAddress theirs = {};
    bool dials = false;
  };
  // A connection to a peer, or to a process that has not identified itself yet. Used only by this
  // object's thread.
  struct Socket {
    std::shared_ptr<const FileDescriptor> fd;
    // Empty until the other end has identified itself.
    std::string peer;
    std::unique_ptr<ShmSegment> control = nullptr;  // null once there is a channel
    std::shared_ptr<ShmChannel> channel = nullptr;
    bool dials = false;
    absl::Time since = absl::Now();
    bool is_ready = false;
    bool is_over = false;
  };
  using SocketPtr = std::shared_ptr<Socket>;

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

  void OnFreed(uint64_t segment_id) {
    std::vector<std::shared_ptr<ShmChannel>> channels;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [peer, channel] : channels_) channels.push_back(channel);
    }
    for (const auto& channel : channels) channel->SegmentFreed(segment_id);
  }

  void Run();
  void Obey();
  void Connect(const Order& order);
  void Accept();
  void Hear(Socket& socket);
  absl::Status Take(Socket& socket, ReceivedDescriptors received);
  absl::StatusOr<std::unique_ptr<ShmView>> OpenControl(ReceivedDescriptors& received,
                                                       const ShmGreeting& greeting,
                                                       const std::string& peer) const;
  absl::StatusOr<std::unique_ptr<ShmSegment>> NewControl() const;
  absl::Status SendControl(const Socket& socket, Kind kind, const ShmAddress& theirs) const;
  void MakeChannel(Socket& socket, std::unique_ptr<ShmView> theirs);
  void MakeReady(Socket& socket);
  // Ends a connection. Calls `lost` if `why` is an error, Expect was called for the peer, and this
  // end dialled the connection or the connection was ready.
  void End(Socket& socket, const absl::Status& why);

  Options options_;
  const ShmAddress address_;
  const FileDescriptor listener_;
  const FileDescriptor wake_;

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Order> orders_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<ShmChannel>> channels_ ABSL_GUARDED_BY(mutex_);

  // Used only by this object's thread.
  std::map<std::string, Order> expected_;
  std::list<SocketPtr> sockets_;

  std::thread thread_;
};

void ShmPeersImpl::Run() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    std::vector<SocketPtr> sockets(sockets_.begin(), sockets_.end());
    for (const SocketPtr& socket : sockets) polled.push_back({socket->fd->get(), POLLIN, 0});
    const bool has_strangers =
        std::any_of(sockets.begin(), sockets.end(),
                    [](const SocketPtr& socket) { return socket->peer.empty(); });
    const int timeout_ms =
        has_strangers ? static_cast<int>(kStrangerLimit / absl::Milliseconds(1)) : -1;
    if (poll(polled.data(), polled.size(), timeout_ms) < 0) continue;
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
      {
        absl::MutexLock lock(&mutex_);
        if (stopped_) return;
      }
      Obey();
    }
    if (polled[1].revents != 0) Accept();
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (polled[i + 2].revents != 0 && !sockets[i]->is_over) Hear(*sockets[i]);
    }
    const absl::Time now = absl::Now();
    sockets_.remove_if([now](const SocketPtr& socket) {
      return socket->is_over || (socket->peer.empty() && now - socket->since > kStrangerLimit);
    });
  }
}

void ShmPeersImpl::Obey() {
  std::vector<Order> orders;
  {
    absl::MutexLock lock(&mutex_);
    orders.swap(orders_);
  }
  for (Order& order : orders) {
    expected_.erase(order.peer);
    for (const SocketPtr& socket : sockets_) {
      if (socket->peer == order.peer) End(*socket, absl::OkStatus());
    }
    if (order.link == 0) continue;
    expected_[order.peer] = order;
    if (order.dials) Connect(order);
  }
}

void ShmPeersImpl::Connect(const Order& order) {
  auto socket = std::make_shared<Socket>();
  socket->peer = order.peer;
  socket->dials = true;
  sockets_.push_back(socket);
  absl::StatusOr<FileDescriptor> connected = ConnectLocally(order.theirs.socket);
  if (!connected.ok()) {
    End(*socket, absl::UnavailableError(StrCat("no way to ", order.peer,
                                               "'s memory: ", connected.status().message())));
    return;
  }
  socket->fd = std::make_shared<const FileDescriptor>(*std::move(connected));
  auto control = NewControl();
  absl::Status status = control.status();
  if (control.ok()) {
    socket->control = *std::move(control);
    status = SendControl(*socket, Kind::kJoin, order.theirs);
  }
  if (!status.ok()) End(*socket, status);
}

void ShmPeersImpl::Accept() {
  FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    // No descriptor is free. The connection stays in the kernel's queue, so the next poll returns
    // at once. The pause avoids a busy loop.
    if (errno == EMFILE || errno == ENFILE) absl::SleepFor(kDescriptorPause);
    return;
  }
  const auto strangers = std::count_if(sockets_.begin(), sockets_.end(),
                                       [](const SocketPtr& s) { return s->peer.empty(); });
  if (!IsOfUser(fd.get(), geteuid()) || static_cast<size_t>(strangers) >= kMaxStrangers) return;
  auto socket = std::make_shared<Socket>();
  socket->fd = std::make_shared<const FileDescriptor>(std::move(fd));
  sockets_.push_back(std::move(socket));
}

void ShmPeersImpl::Hear(Socket& socket) {
  absl::StatusOr<ReceivedDescriptors> received = ReceiveDescriptors(socket.fd->get());
  const absl::Status status =
      received.ok() ? Take(socket, *std::move(received)) : received.status();
  if (!status.ok()) End(socket, status);
}

absl::Status ShmPeersImpl::Take(Socket& socket, ReceivedDescriptors received) {
  ShmGreeting greeting;
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        StrCat(socket.peer.empty() ? "a process on this host" : socket.peer, " ", what));
  };
  if (received.text.size() != sizeof(greeting)) return refuse("sent a message of another length");
  std::memcpy(&greeting, received.text.data(), sizeof(greeting));
  if (greeting.layout != ShmControl::kLayout) return refuse("has another layout of shared memory");
  switch (greeting.kind) {
    case Kind::kJoin: {
      if (!socket.peer.empty() || greeting.identity_bytes > ShmGreeting::kMaxIdentityBytes) {
        return refuse("joins twice, or with too long a name");
      }
      const std::string peer(greeting.identity.data(), greeting.identity_bytes);
      const auto expected = expected_.find(peer);
      if (expected == expected_.end() || expected->second.dials ||
          greeting.token != address_.token) {
        return refuse("asks for memory that is not for it");
      }
      SHARDMESH_ASSIGN_OR_RETURN(auto theirs, OpenControl(received, greeting, peer));
      for (const SocketPtr& other : sockets_) {
        if (other->peer != peer || other->is_over) continue;
        if (other->is_ready) return refuse("joins beside itself");
        End(*other, absl::OkStatus());  // left from an earlier stream
      }
      socket.peer = peer;
      SHARDMESH_ASSIGN_OR_RETURN(socket.control, NewControl());
      SHARDMESH_RETURN_IF_ERROR(SendControl(socket, Kind::kAccept, expected->second.theirs));
      MakeChannel(socket, std::move(theirs));
      return absl::OkStatus();
    }
    case Kind::kAccept: {
      if (socket.control == nullptr || socket.channel != nullptr) return refuse("accepts nothing");
      SHARDMESH_ASSIGN_OR_RETURN(auto theirs, OpenControl(received, greeting, socket.peer));
      MakeChannel(socket, std::move(theirs));
      const ShmGreeting ready = {.kind = Kind::kReady};
      SHARDMESH_RETURN_IF_ERROR(SendDescriptors(socket.fd->get(), ready.text(), {}));
      MakeReady(socket);
      return absl::OkStatus();
    }
    case Kind::kReady:
      if (socket.channel == nullptr || socket.is_ready) return refuse("is ready for nothing");
      MakeReady(socket);
      return absl::OkStatus();
    case Kind::kSegment: {
      if (socket.channel == nullptr || received.fds.size() != 1) return refuse("sent no segment");
      SHARDMESH_ASSIGN_OR_RETURN(auto view,
                                 ShmView::Open(std::move(received.fds[0]), greeting.size_bytes));
      return socket.channel->AddView(greeting.segment_id, std::move(view));
    }
    case Kind::kFreed:
      if (socket.channel == nullptr) return refuse("freed memory that it never had");
      socket.channel->DropView(greeting.segment_id);
      return absl::OkStatus();
  }
  return refuse("says something unknown");
}

absl::StatusOr<std::unique_ptr<ShmView>> ShmPeersImpl::OpenControl(ReceivedDescriptors& received,
                                                                   const ShmGreeting& greeting,
                                                                   const std::string& peer) const {
  const auto expected = expected_.find(peer);
  if (expected == expected_.end() || received.fds.size() != 1 ||
      greeting.size_bytes != ShmControl::SizeBytes()) {
    return absl::InvalidArgumentError(StrCat(peer, " showed no memory of the right size"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(auto view,
                             ShmView::Open(std::move(received.fds[0]), greeting.size_bytes));
  if (!view->is_mapped()) {
    return absl::ResourceExhaustedError(
        StrCat("the memory of ", peer, " cannot be mapped: this process has too many mappings"));
  }
  const auto& control = *reinterpret_cast<const ShmControl*>(view->bytes().data());
  if (control.layout != ShmControl::kLayout || control.token != expected->second.theirs.token) {
    return absl::InvalidArgumentError(StrCat("the memory that was shown for ", peer,
                                             " is not that of the worker behind the "
                                             "stream"));
  }
  return view;
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmPeersImpl::NewControl() const {
  SHARDMESH_ASSIGN_OR_RETURN(auto control,
                             ShmSegment::Create("shardmesh-control", ShmControl::SizeBytes(),
                                                /*prefault=*/true));
  auto* const end = new (control->bytes().data()) ShmControl();
  end->token = address_.token;
  return control;
}

absl::Status ShmPeersImpl::SendControl(const Socket& socket, Kind kind,
                                       const ShmAddress& theirs) const {
  ShmGreeting greeting = {
      .kind = kind, .size_bytes = ShmControl::SizeBytes(), .token = theirs.token};
  greeting.identity_bytes =
      static_cast<uint32_t>(std::min(options_.identity.size(), ShmGreeting::kMaxIdentityBytes));
  std::memcpy(greeting.identity.data(), options_.identity.data(), greeting.identity_bytes);
  return SendDescriptors(socket.fd->get(), greeting.text(), {socket.control->fd()});
}

void ShmPeersImpl::MakeChannel(Socket& socket, std::unique_ptr<ShmView> theirs) {
  socket.channel = std::make_shared<ShmChannel>(std::move(socket.control), std::move(theirs),
                                                socket.fd, options_.arena.get(), options_.budget);
}

void ShmPeersImpl::MakeReady(Socket& socket) {
  const auto expected = expected_.find(socket.peer);
  if (expected == expected_.end()) {
    End(socket, absl::OkStatus());  // Forget was called for the peer
    return;
  }
  socket.is_ready = true;
  {
    absl::MutexLock lock(&mutex_);
    channels_[socket.peer] = socket.channel;
  }
  options_.connected(socket.peer, expected->second.link, socket.channel);
}

void ShmPeersImpl::End(Socket& socket, const absl::Status& why) {
  socket.is_over = true;
  if (socket.channel != nullptr) {
    socket.channel->Close();
    absl::MutexLock lock(&mutex_);
    const auto found = channels_.find(socket.peer);
    if (found != channels_.end() && found->second == socket.channel) channels_.erase(found);
  }
  if (why.ok()) return;
  const auto expected = expected_.find(socket.peer);
  // The end of a connection that was accepted but never became ready does not end the attempt to
  // share memory: the peer may connect again.
  if (expected == expected_.end() || (!socket.dials && !socket.is_ready)) {
    LogWarning("shared memory refused", {{"identity", options_.identity}, {"error", why}});
    return;
  }
  const uint64_t link = expected->second.link;
  expected_.erase(expected);
  options_.lost(socket.peer, link, socket.is_ready, why);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmPeers>> ShmPeers::Start(Options options) {
  SHARDMESH_ASSIGN_OR_RETURN(LocalListener listener, ListenLocally(""));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SocketError("no wake-up descriptor for peers on this host");
  ShmAddress own;
  own.socket = std::move(listener.name);
  const std::string random = RandomBytes(own.token.size());
  std::copy(random.begin(), random.end(), own.token.begin());
  return std::make_unique<ShmPeersImpl>(std::move(options), std::move(own),
                                        std::move(listener.socket), std::move(wake));
}

}  // namespace shardmesh::worker
