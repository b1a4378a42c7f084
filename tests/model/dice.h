// Dice: small deterministic random choices. The same seed gives the same choices on every machine.
#ifndef SHARDMESH_TESTS_MODEL_DICE_H_
#define SHARDMESH_TESTS_MODEL_DICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardmesh::model {

// splitmix64. Not thread-safe.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1; n is at least 1.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // True once in n.
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(Below(static_cast<int64_t>(choices.size())))];
  }

 private:
  uint64_t state_;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_DICE_H_
