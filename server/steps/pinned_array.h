// An array of the registry that is kept alive.
#ifndef SHARDMESH_SERVER_STEPS_PINNED_ARRAY_H_
#define SHARDMESH_SERVER_STEPS_PINNED_ARRAY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/state/array_registry.h"

namespace shardmesh::server {

// Pins an array in the registry, and unpins it when it is destroyed. Immutable. Must not outlive
// the registry. Destroy it without a lock: the registry then calls its listeners.
class PinnedArray {
 public:
  // Pins an array of ArrayRegistry::FindByOrigin, which may be cached. Returns null if the array no
  // longer exists, or was given away.
  // `is_use`, `replicas`: as for ArrayRegistry::PinFound.
  static std::shared_ptr<const PinnedArray> Pin(ArrayRegistry* registry, ArrayPtr array,
                                                bool is_use = true,
                                                std::optional<int64_t> replicas = std::nullopt) {
    const std::string& id = array->definition.descriptor.array_id;
    if (!registry->PinFound(id, is_use, replicas).ok()) return nullptr;
    return std::shared_ptr<const PinnedArray>(new PinnedArray(registry, std::move(array)));
  }
  // The same for an array that must not be cached.
  static std::shared_ptr<const PinnedArray> PinLive(ArrayRegistry* registry, ArrayPtr array) {
    if (!registry->Pin(array->definition.descriptor.array_id).ok()) return nullptr;
    return std::shared_ptr<const PinnedArray>(new PinnedArray(registry, std::move(array)));
  }
  ~PinnedArray() { registry_->Unpin(array_->definition.descriptor.array_id); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  // The array, in its state before it was pinned.
  const Array& array() const { return *array_; }

 private:
  PinnedArray(ArrayRegistry* registry, ArrayPtr array)
      : registry_(registry), array_(std::move(array)) {}

  ArrayRegistry* const registry_;
  const ArrayPtr array_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PINNED_ARRAY_H_
