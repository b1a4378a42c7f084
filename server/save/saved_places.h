// Where saved checkpoints have arrays: in the registry, and in the store for the next start.
#ifndef SHARDMESH_SERVER_SAVE_SAVED_PLACES_H_
#define SHARDMESH_SERVER_SAVE_SAVED_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/state/array_record.h"
#include "server/state/array_registry.h"
#include "server/store/store.h"

namespace shardmesh::server {

// Repairs read lost tiles from the newest checkpoint of an array. The registry has this place in
// memory; the store has it in records `saved/ID`, one for each save with up to about 20,000 arrays.
// A record that is the newest of no array is deleted with the next save, or at the next start. A
// write that fails is logged: a checkpoint is complete without it.
//
// Thread-safe. Registry and store outlive this object.
class SavedPlaces {
 public:
  // `registry` is open. `store` may be null: then all places are forgotten with the process.
  SavedPlaces(ArrayRegistry* registry, Store* store, size_t max_record_bytes = kMaxChunkBytes);
  SavedPlaces(const SavedPlaces&) = delete;
  SavedPlaces& operator=(const SavedPlaces&) = delete;

  // Tells the registry the places that the store has. Records that cannot be read are deleted. Call
  // this once, before Remember.
  void Load();
  // Tells the registry the places, and commits them to the store without waiting for it. The places
  // are those of one checkpoint, newer than all before.
  void Remember(const std::vector<SavedPlace>& places);

 private:
  // Number of arrays for which each record is the newest, by the key of the record.
  using Records = std::map<std::string, int64_t>;
  using Newest = std::map<std::string, Records::iterator>;  // by array
  // Shared with the callbacks of the store, which may come after this object is gone.
  struct State {
    absl::Mutex mutex;
    Records records ABSL_GUARDED_BY(mutex);
  };

  // Makes the record the newest of the array.
  void Move(const std::string& array_id, Records::iterator to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_, state_->mutex);
  // Returns the arrays of newest_ that the registry no longer has. Takes long for many arrays, so
  // the store's callbacks must not wait for it: does not need the mutex of the state.
  std::vector<Newest::iterator> FindReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds deletes of records that are the newest of no array.
  void AddDeletes(Transaction* transaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_, state_->mutex);
  void Commit(Transaction transaction) const;

  ArrayRegistry* const registry_;
  Store* const store_;
  const size_t max_record_bytes_;
  Revision cluster_revision_ = 0;  // of the record that this coordinator has written; constant
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  // Keeps the order of saves in the registry and in the store. Taken before that of the state.
  absl::Mutex mutex_;
  Newest newest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SAVE_SAVED_PLACES_H_
