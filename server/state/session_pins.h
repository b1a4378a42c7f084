// Pin, take over and unpin arrays for a session. The session keeps a list of its arrays, and the
// registry counts the pins of each array; these functions change both.
#ifndef SHARDMESH_SERVER_STATE_SESSION_PINS_H_
#define SHARDMESH_SERVER_STATE_SESSION_PINS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/state/array_registry.h"
#include "server/state/session.h"
#include "status/status_macros.h"

namespace shardmesh::server {

// Pins an array for a session. Returns whether the session did not pin the array before; a second
// pin has no effect. NOT_FOUND: no such array, or no such session (SESSION_GONE). Pins the array in
// the registry before it adds the array to the session. Whenever the session ends, the registry
// therefore has the pin that must be removed.
inline absl::StatusOr<bool> PinForSession(ArrayRegistry& registry, SessionTable& sessions,
                                          std::string_view session_id,
                                          const std::string& array_id) {
  SHARDMESH_RETURN_IF_ERROR(registry.Pin(array_id));
  const absl::StatusOr<bool> is_new = sessions.PinArray(session_id, array_id);
  if (!is_new.ok() || !*is_new) {
    registry.Unpin(array_id);
  }
  return is_new;
}

// Lets a session take over arrays that its client made without names, and held, before the last
// start of the coordinator: see ArrayRegistry::TakeOver. An array that the session pins already
// only loses its grace period. Ignores arrays that are gone. Returns the arrays for which there was
// no room (TakenOver::kNoRoom), in the order of `array_ids`; the session has the others. NOT_FOUND
// (SESSION_GONE): no such session. A second call with the same arrays takes over those for which
// there is room by then.
inline absl::StatusOr<std::vector<std::string>> TakeOverForSession(
    ArrayRegistry& registry, SessionTable& sessions, std::string_view session_id,
    absl::Span<const std::string> array_ids) {
  std::vector<std::string> refused;
  for (const std::string& array_id : array_ids) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool has_it, sessions.PinsArray(session_id, array_id));
    if (has_it) {
      registry.ReplaceGrace(array_id);
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t awaited, sessions.CountAwaited(session_id));
    const absl::StatusOr<TakenOver> taken = registry.TakeOver(array_id, awaited);
    if (absl::IsNotFound(taken.status())) continue;
    SHARDMESH_RETURN_IF_ERROR(taken.status());
    if (*taken == TakenOver::kNoRoom) {
      refused.push_back(array_id);
      continue;
    }
    const absl::StatusOr<bool> is_new =
        sessions.PinArray(session_id, array_id, *taken == TakenOver::kAwaited);
    if (!is_new.ok() || !*is_new) registry.Unpin(array_id);
    SHARDMESH_RETURN_IF_ERROR(is_new.status());
  }
  return refused;
}

// Unpins arrays. Returns how many of these arrays the session had pinned. A session that is gone
// has already unpinned its arrays.
inline int64_t UnpinForSession(ArrayRegistry& registry, SessionTable& sessions,
                               std::string_view session_id,
                               absl::Span<const std::string> array_ids) {
  std::vector<std::string> unpinned;
  for (const std::string& array_id : array_ids) {
    const absl::StatusOr<bool> pinned = sessions.UnpinArray(session_id, array_id);
    if (pinned.ok() && *pinned) {
      unpinned.push_back(array_id);
    }
  }
  registry.Unpin(unpinned);
  return static_cast<int64_t>(unpinned.size());
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_SESSION_PINS_H_
