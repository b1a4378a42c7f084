// Enumerates the messages of each algorithm between places, and adds up their bytes.
#include "program/collective_traffic.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "program/value_layout.h"

namespace shardmesh {
namespace {

using Algorithm = CollectiveAlgorithm;
using Kind = CollectiveKind;

// Places [begin, begin + size): a node of the canonical tree, as in worker/collective/blocks.h.
struct PlaceBlock {
  int64_t begin = 0;
  int64_t size = 0;

  bool contains(int64_t place) const { return place >= begin && place < begin + size; }
};

// Returns the number of elements in part `index` if `count` elements are cut into `parts` parts as
// EvenCuts does.
int64_t EvenPart(int64_t count, int64_t parts, int64_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}

// Adds the traffic of one collective in one group.
class GroupExchange {
 public:
  GroupExchange(const CollectiveOp& op, const GroupTiles& tiles, PlaceTraffic* traffic)
      : op_(op),
        tiles_(tiles),
        traffic_(traffic),
        places_(traffic->places()),
        split_extent_(
            std::accumulate(tiles.split_extents.begin(), tiles.split_extents.end(), int64_t{0})) {}

  void Add() {
    switch (op_.algorithm) {
      case Algorithm::kAuto:
      case Algorithm::kPairwise:
        return AddPairwise();
      case Algorithm::kDirect:
        return AddDirect();
      case Algorithm::kDoubling:
        return AddDoubling();
      case Algorithm::kHalving:
        return AddHalving();
      case Algorithm::kRing:
        return AddRing();
      case Algorithm::kBinomial:
        return op_.kind == Kind::kReduce ? AddBinomialReduce() : AddBinomialBroadcast();
      case Algorithm::kChain:
        return AddChain();
    }
  }

 private:
  // Adds bytes_of(sender, receiver) for each ordered pair of places.
  template <typename Fn>
  void ForEachPair(Fn bytes_of) {
    for (int64_t sender = 0; sender < places_; ++sender) {
      for (int64_t receiver = 0; receiver < places_; ++receiver) {
        traffic_->Add(sender, receiver, bytes_of(sender, receiver));
      }
    }
  }

  void AddPairwise() {
    switch (op_.kind) {
      case Kind::kAllReduce:
        return ForEachPair([this](int64_t sender, int64_t receiver) {
          int64_t bytes = OperandBytes(EvenPartOf(sender, receiver));
          AddTo(bytes, ResultBytes(EvenPartOf(sender, sender)));
          return bytes;
        });
      case Kind::kReduceScatter:
      case Kind::kAllToAll:
        return ForEachPair([this](int64_t sender, int64_t receiver) {
          return OperandBytes(SplitPart(sender, receiver));
        });
      case Kind::kAllGather:
        return ForEachPair([this](int64_t sender, int64_t) { return TileBytesOf(sender); });
      case Kind::kBroadcast:
        for (int64_t receiver = 0; receiver < places_; ++receiver) {
          traffic_->Add(op_.root, receiver, TileBytesOf(op_.root));
        }
        return;
      case Kind::kReduce:
        ForEachPair([this](int64_t sender, int64_t receiver) {
          return OperandBytes(EvenPartOf(sender, receiver));
        });
        for (int64_t sender = 0; sender < places_; ++sender) {
          traffic_->Add(sender, op_.root, ResultBytes(EvenPartOf(sender, sender)));
        }
        return;
      case Kind::kGather:
        return AllToRoot();
      case Kind::kScatter:
        for (int64_t receiver = 0; receiver < places_; ++receiver) {
          traffic_->Add(op_.root, receiver, OperandBytes(SplitPart(op_.root, receiver)));
        }
        return;
      case Kind::kPermute:
        for (const PermutePair& pair : op_.permutation) {
          traffic_->Add(pair.source, pair.target, TileBytesOf(pair.source));
        }
        return;
      case Kind::kBarrier:
        return ForEachPair([](int64_t, int64_t) { return 1; });
    }
  }

  void AddDirect() {
    if (op_.kind == Kind::kReduce) return AllToRoot();
    ForEachPair([this](int64_t sender, int64_t) { return TileBytesOf(sender); });
  }

  // Each place sends its operand to the root.
  void AllToRoot() {
    for (int64_t sender = 0; sender < places_; ++sender) {
      traffic_->Add(sender, op_.root, TileBytesOf(sender));
    }
  }

  void AddDoubling() {
    if (op_.kind == Kind::kBarrier) {
      for (int64_t distance = 1; distance < places_; distance *= 2) {
        for (int64_t place = 0; place < places_; ++place) {
          traffic_->Add(place, (place + distance) % places_, 1);
        }
      }
      return;
    }
    for (int64_t level = 0; level < Levels(); ++level) {
      for (int64_t place = 0; place < places_; ++place) {
        const PlaceBlock mine = BlockAt(level, place >> level);
        const PlaceBlock sibling = BlockAt(level, (place >> level) ^ 1);
        if (sibling.size == 0) continue;
        const int64_t bytes = op_.kind == Kind::kAllGather
                                  ? BlockBytes(mine)
                                  : HeldBytes(mine, tiles_.elements[Index(place)]);
        // Each place of the sibling receives from one place of `mine`. The sender's offset in
        // `mine` is the receiver's offset in the sibling, modulo the size of `mine`.
        for (int64_t offset = place - mine.begin; offset < sibling.size; offset += mine.size) {
          traffic_->Add(place, sibling.begin + offset, bytes);
        }
      }
    }
  }

  void AddHalving() {
    const std::vector<int64_t> owners = BackwardOrder();
    const std::vector<int64_t> parts = HalvingParts();
    for (int64_t level = 0; level < Levels(); ++level) {
      for (int64_t index = 0; BlockAt(level, index + 1).size > 0; index += 2) {
        for (size_t part = 0; part < parts.size(); ++part) {
          const int64_t left = HolderOf(level, index, owners[part]);
          const int64_t right = HolderOf(level, index + 1, owners[part]);
          const bool left_keeps = HolderOf(level + 1, index / 2, owners[part]) == left;
          const int64_t keeper = left_keeps ? left : right;
          const int64_t giver = left_keeps ? right : left;
          // `giver` sends its operand or partial result of the part. `keeper` sends the part's
          // result back later.
          traffic_->Add(giver, keeper,
                        HeldBytes(BlockAt(level, index + (left_keeps ? 1 : 0)), parts[part]));
          traffic_->Add(keeper, giver, ResultBytes(parts[part]));
        }
      }
    }
  }

  void AddRing() {
    for (int64_t place = 0; place < places_; ++place) {
      const int64_t before = (place + places_ - 1) % places_;
      const int64_t after = (place + 1) % places_;
      for (int64_t part = 0; part < places_; ++part) {
        // To combine: each part passes all places and ends at its owner. The place after the owner
        // begins and sends its operand; the places after that send partial results.
        if (op_.kind != Kind::kAllGather && part != place) {
          const int64_t elements =
              op_.kind == Kind::kAllReduce ? EvenPartOf(place, part) : SplitPart(place, part);
          traffic_->Add(place, after,
                        part == before ? OperandBytes(elements) : PartialBytes(elements));
        }
        // To join: each part passes all places, from its owner to the place before the owner.
        if (op_.kind != Kind::kReduceScatter && part != after) {
          traffic_->Add(place, after,
                        op_.kind == Kind::kAllReduce ? ResultBytes(EvenPartOf(place, part))
                                                     : TileBytesOf(part));
        }
      }
    }
  }

  void AddBinomialBroadcast() {
    for (int64_t distance = 1; distance < places_; ++distance) {
      const int64_t lowest_bit = distance & -distance;
      traffic_->Add(FromRoot(distance - lowest_bit), FromRoot(distance), TileBytesOf(op_.root));
    }
  }

  void AddBinomialReduce() {
    for (int64_t place = 0; place < places_; ++place) {
      for (int64_t level = 0; level < Levels(); ++level) {
        const int64_t index = place >> level;
        const PlaceBlock mine = BlockAt(level, index);
        const PlaceBlock sibling = BlockAt(level, index ^ 1);
        if (sibling.size == 0) continue;
        const bool has_root = mine.contains(op_.root);
        const bool is_left = index % 2 == 0;
        if (!sibling.contains(op_.root) && (has_root || is_left)) continue;  // `mine` receives
        traffic_->Add(place, sibling.contains(op_.root) ? op_.root : sibling.begin,
                      HeldBytes(mine, tiles_.elements[Index(place)]));
        break;
      }
    }
  }

  void AddChain() {
    for (int64_t distance = 1; distance < places_; ++distance) {
      traffic_->Add(FromRoot(distance - 1), FromRoot(distance), TileBytesOf(op_.root));
    }
  }

  int64_t FromRoot(int64_t distance) const { return (op_.root + distance) % places_; }

  // Returns the number of levels below the level at which one block has all places.
  int64_t Levels() const { return std::bit_width(static_cast<uint64_t>(places_ - 1)); }
  PlaceBlock BlockAt(int64_t level, int64_t index) const {
    const int64_t begin = std::min(index << level, places_);
    return {begin, std::min(int64_t{1} << level, places_ - begin)};
  }

  // Returns all places in the order of their bit-reversed numbers.
  std::vector<int64_t> BackwardOrder() const {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < int64_t{1} << Levels(); ++i) {
      int64_t place = 0;
      for (int64_t bit = 0; bit < Levels(); ++bit) place |= (i >> bit & 1) << (Levels() - 1 - bit);
      if (place < places_) order.push_back(place);
    }
    return order;
  }
  // Returns the number of elements of each part, summed over all chunks.
  std::vector<int64_t> HalvingParts() const {
    const int64_t count = tiles_.elements.front();
    const int64_t chunks = HalvingChunks(OperandBytes(count));
    std::vector<int64_t> parts(Index(places_));
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t part = 0; part < places_; ++part) {
        parts[Index(part)] += EvenPart(EvenPart(count, chunks, chunk), places_, part);
      }
    }
    return parts;
  }
  // Returns the place that holds the combined operands of block `index` of `level`, for the part
  // that the place `owner` owns.
  int64_t HolderOf(int64_t level, int64_t index, int64_t owner) const {
    const PlaceBlock block = BlockAt(level, index);
    if (block.contains(owner)) return owner;
    const int64_t same_place = block.begin + (owner & ((int64_t{1} << level) - 1));
    if (block.contains(same_place)) return same_place;
    return HolderOf(level - 1, index * 2, owner);
  }

  static size_t Index(int64_t place) { return static_cast<size_t>(place); }

  // Both return the number of elements in one part of a place's operand. EvenPartOf cuts the
  // operand into equal parts; SplitPart cuts it along the split dimension.
  int64_t EvenPartOf(int64_t place, int64_t part) const {
    return EvenPart(tiles_.elements[Index(place)], places_, part);
  }
  int64_t SplitPart(int64_t place, int64_t part) const {
    if (split_extent_ == 0) return 0;
    return tiles_.elements[Index(place)] / split_extent_ * tiles_.split_extents[Index(part)];
  }

  int64_t OperandBytes(int64_t elements) const { return BytesOf(elements, tiles_.operand_dtype); }
  int64_t ResultBytes(int64_t elements) const { return BytesOf(elements, tiles_.result_dtype); }
  int64_t PartialBytes(int64_t elements) const {
    return BytesOf(elements, PartialSumType(tiles_.operand_dtype));
  }
  // Returns the bytes of a place's operand.
  int64_t TileBytesOf(int64_t place) const { return OperandBytes(tiles_.elements[Index(place)]); }
  // Returns the bytes of the operands of all places in a block.
  int64_t BlockBytes(const PlaceBlock& block) const {
    int64_t bytes = 0;
    for (int64_t i = 0; i < block.size; ++i) AddTo(bytes, TileBytesOf(block.begin + i));
    return bytes;
  }
  // Returns the bytes of `elements` elements of the combined operands of a block. For a block of
  // one place, these are elements of its operand; for a larger block, partial results.
  int64_t HeldBytes(const PlaceBlock& block, int64_t elements) const {
    return block.size == 1 ? OperandBytes(elements) : PartialBytes(elements);
  }

  const CollectiveOp& op_;
  const GroupTiles& tiles_;
  PlaceTraffic* const traffic_;
  const int64_t places_;
  const int64_t split_extent_;
};

}  // namespace

int64_t HalvingChunks(int64_t operand_bytes) {
  constexpr int64_t kMinChunkBytes = int64_t{256} << 10;
  constexpr int64_t kMaxChunks = 16;
  return std::clamp(operand_bytes / kMinChunkBytes, int64_t{1}, kMaxChunks);
}

void PlaceTraffic::Add(int64_t sender, int64_t receiver, int64_t bytes) {
  if (sender != receiver) AddTo(bytes_[IndexOf(sender, receiver)], bytes);
}

void AddCollectiveTraffic(const CollectiveOp& op, const GroupTiles& tiles, PlaceTraffic* traffic) {
  if (traffic->places() > 1) GroupExchange(op, tiles, traffic).Add();
}

}  // namespace shardmesh
