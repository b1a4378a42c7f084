// A bounded cache that evicts the least recently used entries.
#ifndef SHARDMESH_STATUS_LRU_CACHE_H_
#define SHARDMESH_STATUS_LRU_CACHE_H_

#include <cstddef>
#include <iterator>
#include <limits>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace shardmesh {

// Keeps values by key: at most Limits::entries values, whose weights add up to at most
// Limits::weight. The last added value stays, regardless of its weight. Not thread-safe. Find and
// ForgetOldest take constant time. Add takes constant time for the new entry and for each entry
// that it evicts.
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
  // Evicted entries. A caller can destroy them after it has released its lock.
  using Forgotten = std::list<Entry>;

  explicit LruCache(const Limits& limits) : limits_(limits) {}

  size_t size() const { return used_.size(); }
  size_t weight() const { return weight_; }  // the sum of the weights of all entries

  // Returns the value of `key`, and makes its entry the most recently used one. Returns null if the
  // cache does not have the key. The pointer is valid until the next Add or ForgetOldest.
  template <typename Lookup>
  const Value* Find(const Lookup& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    used_.splice(used_.begin(), used_, found->second);
    return &found->second->value;
  }

  // Evicts the least recently used value, and returns it. Requires size() > 0.
  Value ForgetOldest() {
    Entry& oldest = used_.back();
    Value value = std::move(oldest.value);
    weight_ -= oldest.weight;
    by_key_.erase(oldest.key);
    used_.pop_back();
    return value;
  }

  // Adds `value` under `key`. If the cache already has the key, keeps the old value. In both cases
  // the entry becomes the most recently used one. Returns the cache's value of the key; the
  // reference is valid until the next Add or ForgetOldest. Moves evicted entries to `forgotten`.
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
  std::list<Entry> used_;  // the most recently used entry first
  absl::flat_hash_map<Key, typename std::list<Entry>::iterator> by_key_;
  size_t weight_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_LRU_CACHE_H_
