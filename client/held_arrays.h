// Arrays that stay while a client uses them.
#ifndef SHARDMESH_CLIENT_HELD_ARRAYS_H_
#define SHARDMESH_CLIENT_HELD_ARRAYS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "process/steady_deadline.h"
#include "sharding/tile.h"

namespace shardmesh::client {

class ClientCore;

// Pins arrays in the client's session until the object is destroyed: they exist until then, also if
// their names are removed, or mean other arrays. Does not keep them if the session ends. Not
// thread-safe. The client must outlive the object.
class HeldArrays {
 public:
  HeldArrays(ClientCore* core, const CallOptions& options) : core_(core), options_(options) {}
  HeldArrays(HeldArrays&& other) noexcept
      : core_(other.core_), options_(other.options_), ids_(std::exchange(other.ids_, {})) {}
  HeldArrays& operator=(HeldArrays&&) = delete;
  ~HeldArrays() { LetGo(); }

  // Pins the array. `part`: the part that will be read; nullopt: the whole array. Errors of
  // ClientCore::Hold.
  absl::Status Add(const Array& array, const std::optional<Tile>& part,
                   const SteadyDeadline& deadline);
  // Ends the pins.
  void LetGo();

 private:
  ClientCore* const core_;
  const CallOptions options_;
  std::vector<std::string> ids_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_HELD_ARRAYS_H_
