// Finds the known name that a mistyped name probably means, for error messages.
#ifndef SHARDMESH_STATUS_NEAREST_NAME_H_
#define SHARDMESH_STATUS_NEAREST_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace shardmesh {

// Returns the number of insertions, deletions, replacements and swaps of neighbouring bytes that
// turn `a` into `b`. Compares only the first 255 bytes of each text, which bounds the cost.
int64_t EditDistance(std::string_view a, std::string_view b);

// Returns the name in `known` with the least EditDistance from `name`: the first of several such
// names. Returns nullopt unless that name is close enough: at most a third of the longer name's
// bytes differ, or one byte differs, or only upper and lower case differ.
std::optional<std::string_view> NearestName(std::string_view name,
                                            absl::Span<const std::string_view> known);

// Returns `; did you mean "tp"?` if NearestName finds a name (here `tp`), else an empty string.
// Append the text at the end of an error message.
std::string DidYouMean(std::string_view name, absl::Span<const std::string_view> known);

// Returns the keys of a sorted map on both sides of the position at which `name` would be inserted.
// Returns at most 1,000 keys, and fewer if the keys are long. With so few keys, DidYouMean takes
// only a few milliseconds.
template <typename Map>
std::vector<std::string> NeighboursOf(std::string_view name, const Map& map) {
  constexpr size_t kMaxNeighbours = 1'000;
  // Upper bound on the byte pairs that the edit distances compare. One distance compares each byte
  // of one name with each byte of the other.
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
