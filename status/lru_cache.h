// A bounded cache that forgets the entries that were not used for the longest time.
#ifndef SHARDMESH_STATUS_LRU_CACHE_H_
#define SHARDMESH_STATUS_LRU_CACHE_H_

#include <cstddef>
#include <iterator>
#include <limits>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace shardmesh {

// Keeps values by key: at most `entries` of them, with at most `weight` in sum. The last added one
// stays, regardless of its weight. Not thread-safe. Find and Add take constant time.
template <typename Key, typename Value>
class LruCache {
  struct Entry {
    Key key;
    Value value;
    size_t weight = 0;
  };

 public:
  struct Limits {
    size_t entries = std::numeric_limits<size_t>::max();
    size_t weight = std::numeric_limits<size_t>::max();
  };
  // Entries that were forgotten. A caller can destroy them after it has released its lock.
  using Forgotten = std::list<Entry>;

  explicit LruCache(const Limits& limits) : limits_(limits) {}

  size_t size() const { return used_.size(); }

  // The value of `key`, which becomes the one used last; null if it is not kept. Valid until the
  // next Add.
  template <typename Lookup>
  const Value* Find(const Lookup& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    used_.splice(used_.begin(), used_, found->second);
    return &found->second->value;
  }

  // Keeps `value`, unless `key` is kept already: then that value stays. Returns the kept value,
  // valid until the next Add.
  const Value& Add(const Key& key, Value value, Forgotten* forgotten, size_t weight = 0) {
    const auto [place, is_new] = by_key_.try_emplace(key);
    if (!is_new) {
      used_.splice(used_.begin(), used_, place->second);
      return place->second->value;
    }
    used_.push_front({key, std::move(value), weight});
    place->second = used_.begin();
    weight_ += weight;
    while (used_.size() > 1 && (used_.size() > limits_.entries || weight_ > limits_.weight)) {
      weight_ -= used_.back().weight;
      by_key_.erase(used_.back().key);
      forgotten->splice(forgotten->begin(), used_, std::prev(used_.end()));
    }
    return used_.front().value;
  }

 private:
  const Limits limits_;
  std::list<Entry> used_;  // the one used last is in front
  absl::flat_hash_map<Key, typename std::list<Entry>::iterator> by_key_;
  size_t weight_ = 0;  // of all entries
};

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_LRU_CACHE_H_
