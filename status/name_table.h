// A hash table with short names as keys, for lookups in a few nanoseconds.
#ifndef SHARDMESH_STATUS_NAME_TABLE_H_
#define SHARDMESH_STATUS_NAME_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardmesh {

// A hash table from names to values that hashes only the length and the first and last eight bytes
// of a name. A lookup is several times as fast as in a general hash map.
//
// Names of the same length collide if their first eight bytes and their last eight bytes are the
// same. Use the table for tens of distinct names (a few hundred at most). Never use it for names
// that clients choose.
//
// Not synchronised; safe to read from several threads.
template <typename Value>
class NameTable {
 public:
  NameTable() : slots_(kLeastSlots) {}

  // Adds a name with its value. Returns false, and changes nothing, if the name is already present.
  bool Insert(std::string name, Value value) {
    if (Find(name) != nullptr) return false;
    if (2 * (size_ + 1) > slots_.size()) Grow();
    Slot& slot = slots_[FreePlace(name)];
    slot.name = std::move(name);
    slot.value = std::move(value);
    slot.used = true;
    ++size_;
    return true;
  }

  // Returns the value of a name; null if the name is absent. The pointer is valid until the next
  // Insert.
  const Value* Find(std::string_view name) const {
    for (size_t i = Hash(name) & mask();; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (!slot.used) return nullptr;
      if (slot.name == name) return &slot.value;
    }
  }

 private:
  static constexpr size_t kLeastSlots = 64;  // the number of slots is always a power of two

  struct Slot {
    std::string name;
    Value value{};
    bool used = false;
  };

  static size_t Hash(std::string_view name) {
    uint64_t head = 0;
    uint64_t tail = 0;
    if (name.size() >= sizeof(head)) {
      std::memcpy(&head, name.data(), sizeof(head));
      std::memcpy(&tail, name.data() + name.size() - sizeof(tail), sizeof(tail));
    } else if (!name.empty()) {
      std::memcpy(&head, name.data(), name.size());
    }
    // Multiplication by odd constants moves each bit's effect upwards, so the upper half depends on
    // all bits.
    const uint64_t mixed = (head * 0x9E3779B97F4A7C15) ^ (tail * 0xC2B2AE3D27D4EB4F) ^ name.size();
    return static_cast<size_t>((mixed * 0x9E3779B97F4A7C15) >> 32);
  }

  size_t mask() const { return slots_.size() - 1; }

  // Returns the index of the free slot for a name that is absent. The search ends, since at least
  // half of all slots are free.
  size_t FreePlace(std::string_view name) const {
    size_t i = Hash(name) & mask();
    while (slots_[i].used) i = (i + 1) & mask();
    return i;
  }

  void Grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.used) slots_[FreePlace(slot.name)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_NAME_TABLE_H_
