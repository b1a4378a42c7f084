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
    SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                               TileRegion::Create(tensor_.dtype(), tensor_.shape(), tile));
    const TensorView* const view = tensor_.view();
    for (int64_t begin = 0; begin < region.size_bytes(); begin += kMatchPieceBytes) {
      if (is_over_()) return absl::CancelledError("the put is over");
      const int64_t end = std::min(region.size_bytes(), begin + kMatchPieceBytes);
      const auto size = static_cast<size_t>(end - begin);
      if (view != nullptr && region.contiguous()) {
        visit(view->bytes().subspan(static_cast<size_t>(region.offset_bytes() + begin), size));
        continue;
      }
      piece_.resize(size);
      if (view == nullptr) {
        SHARDMESH_RETURN_IF_ERROR(tensor_.producer()->Fill(tile, begin, absl::MakeSpan(piece_)));
      } else {
        char* to = piece_.data();
        region.ForEachRun(begin, end, [&](int64_t run_offset, int64_t run_bytes) {
          to = std::copy_n(view->bytes().data() + run_offset, run_bytes, to);
        });
      }
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

// Returns the first array of the layout whose checksums are those of the tensor; null: none is.
absl::StatusOr<const ContentCandidate*> FindEqual(TilePieces& pieces,
                                                  const CandidateLayout& layout) {
  std::vector<const ContentCandidate*> left = layout.arrays;
  for (int64_t tile = 0; tile < layout.tiling.DistinctTileCount() && !left.empty(); ++tile) {
    SHARDMESH_ASSIGN_OR_RETURN(const uint32_t crc32c,
                               pieces.Checksum(layout.tiling.ReplicaGroup(tile).tile));
    std::erase_if(left, [&](const ContentCandidate* each) {
      return each->tile_crc32c[static_cast<size_t>(tile)] != crc32c;
    });
  }
  return left.empty() ? nullptr : left.front();
}

absl::StatusOr<std::optional<ContentClaim>> Match(const TensorElements& tensor,
                                                  const CandidateLayouts& layouts,
                                                  const std::function<bool()>& is_over) {
  TilePieces pieces(tensor, is_over);
  for (const CandidateLayout& layout : layouts) {
    SHARDMESH_ASSIGN_OR_RETURN(const ContentCandidate* const equal, FindEqual(pieces, layout));
    if (equal == nullptr) continue;
    ContentClaim claim{.array_id = equal->array.array_id, .tile_sha256 = {}};
    for (int64_t tile = 0; tile < layout.tiling.DistinctTileCount(); ++tile) {
      SHARDMESH_ASSIGN_OR_RETURN(std::string digest,
                                 pieces.Digest(layout.tiling.ReplicaGroup(tile).tile));
      claim.tile_sha256.push_back(std::move(digest));
    }
    return claim;
  }
  return std::nullopt;
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
