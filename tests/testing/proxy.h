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

// Accepts TCP connections on loopback and passes their bytes to a server and back, as its mode
// says. Thread-safe.
class Proxy {
 public:
  enum class Mode {
    kPass,
    kDelay,    // bytes arrive later, in their order
    kHold,     // nothing arrives, until the mode is another
    kSwallow,  // nothing arrives, and sent bytes are lost: the connections end with this mode
  };

  // `target`: an address like 127.0.0.1:1234. Nobody need listen there yet.
  static absl::StatusOr<std::unique_ptr<Proxy>> Start(const std::string& target);
  ~Proxy();

  const std::string& address() const { return address_; }
  void Set(Mode mode, absl::Duration delay = absl::ZeroDuration());
  // Resets each connection after this many more bytes in either direction, usually in the middle of
  // a message; 0: at once.
  void CutAfter(int64_t bytes);
  // Cancels CutAfter. When this returns, no connection will be cut.
  void CutNoMore();
  // Bytes that were swallowed so far.
  int64_t swallowed_bytes() const { return swallowed_bytes_; }

 private:
  // Values of cut_after_. kNoChange: the thread has applied the last one. kNever: cancel all cuts.
  static constexpr int64_t kNoChange = -1;
  static constexpr int64_t kNever = -2;

  struct Piece {
    absl::Time due;
    std::string bytes;
  };
  // One direction. Its bytes wait here until they are due.
  struct Pipe {
    int from = -1;
    int to = -1;
    std::deque<Piece> waiting;
    int64_t waiting_bytes = 0;
    bool has_ended = false;  // `from` has half-closed
    bool is_done = false;    // and the proxy has half-closed `to`
  };
  struct Connection {
    Pipe up;
    Pipe down;
    int64_t left_bytes = -1;  // until it is cut; -1: it is not
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
