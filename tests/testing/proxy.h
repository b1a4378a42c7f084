// Proxy: a simulated bad network between a server and its clients.
#ifndef SHARDMESH_TESTS_TESTING_PROXY_H_
#define SHARDMESH_TESTS_TESTING_PROXY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shardmesh::test {

// Accepts TCP connections on loopback and passes their bytes to a server and back, in the way of
// the current mode. Thread-safe.
class Proxy {
 public:
  enum class Mode {
    kPass,
    kDelay,    // bytes arrive later, in their order
    kHold,     // nothing arrives until the mode changes
    kSwallow,  // sent bytes are lost; a connection that lost bytes ends when the mode changes
  };

  // `target`: an address like 127.0.0.1:1234. The server may start to listen there later.
  static absl::StatusOr<std::unique_ptr<Proxy>> Start(const std::string& target);
  ~Proxy();

  const std::string& address() const { return address_; }
  void Set(Mode mode, absl::Duration delay = absl::ZeroDuration());
  // Resets each connection after this many more bytes in either direction, usually in the middle of
  // a message; 0: at once.
  void CutAfter(int64_t bytes);
  // Cancels CutAfter. After CutNoMore has returned, no connection is cut.
  void CutNoMore();
  // The number of bytes that kSwallow has discarded so far.
  int64_t swallowed_bytes() const { return swallowed_bytes_; }

 private:
  // Values of cut_after_. kNoChange: the thread has applied the last one. kNever: cancel all cuts.
  static constexpr int64_t kNoChange = -1;
  static constexpr int64_t kNever = -2;

  struct Piece {
    absl::Time due;
    std::string bytes;
  };
  // One direction of a connection. Its bytes wait in the pipe until they are due.
  struct Pipe {
    int from = -1;
    int to = -1;
    std::deque<Piece> waiting;
    int64_t waiting_bytes = 0;
    bool has_ended = false;  // `from` has half-closed
    bool is_done = false;    // after has_ended, the proxy has half-closed `to` too
  };
  struct Connection {
    Pipe up;
    Pipe down;
    int64_t left_bytes = -1;  // bytes until the connection is cut; -1: it is not cut
    bool has_lost_bytes = false;
    bool is_broken = false;
  };

  Proxy() = default;
  void Run();
  void Accept();
  void Read(Connection& connection, Pipe& pipe, Mode mode, absl::Time due);
  void Write(Connection& connection, Pipe& pipe, absl::Time now);

  std::string address_;
  std::string target_;
  int listener_ = -1;
  std::atomic<bool> is_over_ = false;
  std::atomic<int64_t> swallowed_bytes_ = 0;
  absl::Mutex mutex_;
  Mode mode_ ABSL_GUARDED_BY(mutex_) = Mode::kPass;
  absl::Duration delay_ ABSL_GUARDED_BY(mutex_);
  int64_t cut_after_ ABSL_GUARDED_BY(mutex_) = kNoChange;
  std::list<Connection> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_PROXY_H_
