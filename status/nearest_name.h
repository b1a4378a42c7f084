// The known name that a mistyped one was probably meant to be, for error messages.
#ifndef SHARDMESH_STATUS_NEAREST_NAME_H_
#define SHARDMESH_STATUS_NEAREST_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace shardmesh {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, in bytes.
// Only the first 255 bytes of each are looked at, so the cost is bounded for any input.
int64_t EditDistance(std::string_view a, std::string_view b);

// The name in `known` with the least distance from `name`, the first of equals; nullopt unless it
// is near enough to be worth naming: at most a third of the longer one's bytes differ, or one byte,
// or nothing but case.
std::optional<std::string_view> NearestName(std::string_view name,
                                            absl::Span<const std::string_view> known);

// `; did you mean "tp"?` for the nearest name, else nothing: the end of a sentence.
std::string DidYouMean(std::string_view name, absl::Span<const std::string_view> known);

// The keys of a sorted map next to where `name` would stand, on both sides: at most 1,000, and no
// more than DidYouMean looks through in some milliseconds, however long they are.
template <typename Map>
std::vector<std::string> NeighboursOf(std::string_view name, const Map& map) {
  constexpr size_t kMaxNeighbours = 1'000;
  // An edit distance looks at each byte of one name for each byte of the other.
  constexpr size_t kMaxByteProduct = size_t{1} << 20;
  std::vector<std::string> neighbours;
  size_t product = 0;
  const auto take = [&](const std::string& key, size_t most_neighbours, size_t most_product) {
    product += (key.size() + 1) * (name.size() + 1);
    if (neighbours.size() >= most_neighbours || product > most_product) return false;
    neighbours.push_back(key);
    return true;
  };
  auto after = map.lower_bound(name);
  for (auto before = after; before != map.begin();) {
    if (!take((--before)->first, kMaxNeighbours / 2, kMaxByteProduct / 2)) break;
  }
  product = 0;
  for (; after != map.end(); ++after) {
    if (!take(after->first, kMaxNeighbours, kMaxByteProduct / 2)) break;
  }
  return neighbours;
}

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_NEAREST_NAME_H_
