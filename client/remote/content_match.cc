// Reads the tiles of tensors piece by piece, on several threads, and computes their digests.
#include "client/remote/content_match.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "process/crc32c.h"
#include "process/thread_pool.h"
#include "sharding/digest.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "tensor/view.h"

namespace shardmesh::client {
namespace {

// A multiple of the size of each element.
constexpr int64_t kMatchPieceBytes = int64_t{1} << 20;

// An array with more distinct tiles is not claimed. The digests of a claim thus fit a message.
constexpr int64_t kMaxClaimedTiles = 16'384;

// Candidates that lie alike.
struct CandidateLayout {
  Tiling tiling;
  std::vector<const ContentCandidate*> arrays;
};
// The layouts of the candidates of one type and shape, in the order of preference.
using CandidateLayouts = std::vector<CandidateLayout>;
using LayoutsByForm = std::map<std::pair<Dtype, Shape>, CandidateLayouts>;

bool CutAlike(const Tiling& a, const Tiling& b) {
  for (int64_t dim = 0; dim < a.rank(); ++dim) {
    if (a.PartCount(dim) != b.PartCount(dim)) return false;
    for (int64_t part = 0; part < a.PartCount(dim); ++part) {
      if (a.PartRange(dim, part) != b.PartRange(dim, part)) return false;
    }
  }
  return true;
}

LayoutsByForm SortByForm(absl::Span<const ContentCandidate> candidates, const std::string& mesh) {
  std::vector<const ContentCandidate*> sorted;
  sorted.reserve(candidates.size());
  for (const ContentCandidate& candidate : candidates) sorted.push_back(&candidate);
  const auto order = [&mesh](const ContentCandidate* candidate) {
    return std::pair(candidate->array.mesh_id != mesh, !candidate->has_name);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto* a, const auto* b) { return order(a) < order(b); });
  LayoutsByForm by_form;
  for (const ContentCandidate* const candidate : sorted) {
    const ArrayDescriptor& array = candidate->array;
    absl::StatusOr<Tiling> tiling = array.Tiling();
    if (!tiling.ok() || tiling->DistinctTileCount() != std::ssize(candidate->tile_crc32c) ||
        tiling->DistinctTileCount() > kMaxClaimedTiles) {
      continue;
    }
    CandidateLayouts& layouts = by_form[{array.dtype, array.shape}];
    const auto same =
        std::find_if(layouts.begin(), layouts.end(),
                     [&](const CandidateLayout& each) { return CutAlike(each.tiling, *tiling); });
    if (same != layouts.end()) {
      same->arrays.push_back(candidate);
    } else if (layouts.size() < kMaxLayouts) {
      layouts.push_back({.tiling = *std::move(tiling), .arrays = {candidate}});
    }
  }
  return by_form;
}

// Reads tiles of one tensor. Not thread-safe.
class TilePieces {
 public:
  TilePieces(const TensorElements& tensor, const std::function<bool()>& is_over)
      : tensor_(tensor), is_over_(is_over) {}

  // Calls `visit` with the bytes of the tile, in order. CANCELLED: the comparison is over.
  template <typename Visit>
  absl::Status ForEach(const Tile& tile, const Visit& visit) {
    SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits,
                               TileBits::Create(tensor_.dtype(), tensor_.shape(), tile));
    const TensorView* const view = tensor_.view();
    std::optional<absl::Span<const char>> run;
    if (view != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(run, ContiguousTileBytes(*view, tile));
    }
    for (int64_t begin = 0; begin < bits.size_bytes(); begin += kMatchPieceBytes) {
      if (is_over_()) return absl::CancelledError("the put is over");
      const auto size = static_cast<size_t>(std::min(kMatchPieceBytes, bits.size_bytes() - begin));
      if (run.has_value()) {
        visit(run->subspan(static_cast<size_t>(begin), size));
        continue;
      }
      piece_.resize(size);
      SHARDMESH_RETURN_IF_ERROR(
          view != nullptr ? CopyTileBytes(*view, tile, begin, absl::MakeSpan(piece_))
                          : tensor_.producer()->Fill(tile, begin, absl::MakeSpan(piece_)));
      visit(absl::MakeConstSpan(piece_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Checksum(const Tile& tile) {
    uint32_t crc32c = Crc32c({});
    SHARDMESH_RETURN_IF_ERROR(
        ForEach(tile, [&](absl::Span<const char> bytes) { crc32c = ExtendCrc32c(crc32c, bytes); }));
    return crc32c;
  }
  absl::StatusOr<std::string> Digest(const Tile& tile) {
    Sha256Stream digest;
    SHARDMESH_RETURN_IF_ERROR(ForEach(tile, [&](absl::Span<const char> bytes) {
      digest.Add(std::string_view(bytes.data(), bytes.size()));
    }));
    return digest.Finish();
  }

 private:
  const TensorElements& tensor_;
  const std::function<bool()>& is_over_;
  std::vector<char> piece_;
};

// The tiles of an array whose checksums are those of a tensor.
struct EqualTiles {
  const ContentCandidate* array = nullptr;
  const Tiling* tiling = nullptr;
  std::vector<int64_t> tiles = {};  // their numbers, rising
  int64_t elements = 0;             // of these tiles

  bool is_all() const {
    return tiling != nullptr && std::ssize(tiles) == tiling->DistinctTileCount();
  }
};

// Returns the first array of the layout of which most elements are those of the tensor; none if
// none of the first tiles is equal.
absl::StatusOr<EqualTiles> FindEqual(TilePieces& pieces, const CandidateLayout& layout) {
  struct Compared {
    const ContentCandidate* array = nullptr;
    int64_t elements = 0;  // of the tiles that are equal so far
    bool has_equal = false;
  };
  std::vector<Compared> left;
  left.reserve(layout.arrays.size());
  for (const ContentCandidate* const array : layout.arrays) left.push_back({.array = array});
  std::vector<uint32_t> checksums;
  for (int64_t tile = 0; tile < layout.tiling.DistinctTileCount() && !left.empty(); ++tile) {
    const Tile box = layout.tiling.ReplicaGroup(tile).tile;
    SHARDMESH_ASSIGN_OR_RETURN(const uint32_t crc32c, pieces.Checksum(box));
    checksums.push_back(crc32c);
    for (Compared& each : left) {
      if (each.array->tile_crc32c[static_cast<size_t>(tile)] != crc32c) continue;
      each.elements += box.element_count();
      each.has_equal = true;
    }
    if (tile + 1 >= kFirstTiles || tile + 1 == layout.tiling.DistinctTileCount()) {
      std::erase_if(left, [](const Compared& each) { return !each.has_equal; });
    }
  }
  if (left.empty()) return EqualTiles();
  // The first one of several: they are in the order of preference.
  const Compared& best = *std::max_element(
      left.begin(), left.end(),
      [](const Compared& a, const Compared& b) { return a.elements < b.elements; });
  EqualTiles equal{.array = best.array, .tiling = &layout.tiling, .elements = best.elements};
  for (size_t tile = 0; tile < checksums.size(); ++tile) {
    if (best.array->tile_crc32c[tile] == checksums[tile]) {
      equal.tiles.push_back(static_cast<int64_t>(tile));
    }
  }
  return equal;
}

absl::StatusOr<std::optional<ContentClaim>> Match(const TensorElements& tensor,
                                                  const CandidateLayouts& layouts,
                                                  const std::function<bool()>& is_over) {
  TilePieces pieces(tensor, is_over);
  EqualTiles best;
  for (const CandidateLayout& layout : layouts) {
    if (best.is_all()) break;
    SHARDMESH_ASSIGN_OR_RETURN(EqualTiles equal, FindEqual(pieces, layout));
    if (equal.elements > best.elements || (equal.is_all() && best.array == nullptr)) {
      best = std::move(equal);
    }
  }
  if (best.array == nullptr) return std::nullopt;
  ContentClaim claim{.array_id = best.array->array.array_id, .tile_sha256 = {}};
  for (const int64_t tile : best.tiles) {
    SHARDMESH_ASSIGN_OR_RETURN(std::string digest,
                               pieces.Digest(best.tiling->ReplicaGroup(tile).tile));
    claim.tile_sha256.push_back(std::move(digest));
  }
  if (!best.is_all()) claim.equal_tiles = std::move(best.tiles);
  return claim;
}

}  // namespace

std::vector<std::optional<ContentClaim>> MatchContent(absl::Span<const TensorElements> tensors,
                                                      absl::Span<const ContentCandidate> candidates,
                                                      const MatchOptions& options) {
  std::vector<std::optional<ContentClaim>> claims(tensors.size());
  const LayoutsByForm layouts = SortByForm(candidates, options.mesh);
  RunOnThreads(tensors.size(), static_cast<size_t>(options.threads), [&](size_t i) {
    const auto found = layouts.find({tensors[i].dtype(), tensors[i].shape()});
    if (found == layouts.end()) return;
    auto claim = Match(tensors[i], found->second, options.is_over);
    // The put itself meets the error of a producer, and reports it.
    if (claim.ok()) claims[i] = *std::move(claim);
  });
  return claims;
}

}  // namespace shardmesh::client
