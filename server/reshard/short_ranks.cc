// Names the ranks whose workers have too little memory, and the memory that would be enough.
#include "server/reshard/short_ranks.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "server/steps/committed_bytes.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// Returns the limit for all tiles with which the worker has what it needs.
int64_t LimitFor(const ReshardMemoryNeed& rank) {
  const int64_t missing = AddCapped(-rank.have_bytes, rank.need_bytes);
  // Streams from peers take up to an eighth of --memory; see docs/collectives.md, Back-pressure.
  return AddCapped(rank.capacity_bytes, AddCapped(missing, missing / 7 + 1));
}

}  // namespace

std::vector<ReshardMemoryNeed> ShortRanks(absl::Span<const ReshardMemoryNeed> memory) {
  std::vector<ReshardMemoryNeed> short_ranks;
  for (const ReshardMemoryNeed& each : memory) {
    if (each.need_bytes > each.have_bytes) short_ranks.push_back(each);
  }
  return short_ranks;
}

std::string MemoryFlagFor(absl::Span<const ReshardMemoryNeed> short_ranks) {
  int64_t limit = 0;
  for (const ReshardMemoryNeed& each : short_ranks) limit = std::max(limit, LimitFor(each));
  limit = std::min(limit, std::numeric_limits<int64_t>::max() - kMebibyte);
  return StrCat("--memory ", (limit + kMebibyte - 1) / kMebibyte, "MiB");
}

absl::Status TooLittleMemory(absl::Span<const ReshardMemoryNeed> short_ranks, std::string_view work,
                             std::string_view list_flag, std::string_view advice) {
  // The advice comes before the list of ranks: a long message is cut at its end.
  std::string message =
      StrCat(work, " lacks memory on ", short_ranks.size(),
             short_ranks.size() == 1 ? " rank" : StrCat(" ranks (", list_flag, " lists them)"),
             ", and nothing was moved; ", advice);
  if (std::any_of(short_ranks.begin(), short_ranks.end(),
                  [](const ReshardMemoryNeed& each) { return each.have_bytes == 0; })) {
    StrAppend(&message,
              " (arrays that readers still hold count, even if they have left memory: retry when "
              "the readers have ended)");
  }
  std::vector<int64_t> ranks;
  std::vector<std::string> identities;
  for (const ReshardMemoryNeed& each : short_ranks.subspan(0, kShortRanksNamed)) {
    const auto [have, need] = FormatBytesApart(each.have_bytes, each.need_bytes);
    StrAppend(&message, "\n  rank ", each.rank, " of the mesh \"", each.mesh_id, "\" (worker \"",
              each.identity, "\") has ", have, " of ", FormatBytes(each.capacity_bytes),
              " left, and needs ", need);
    ranks.push_back(each.rank);
    identities.push_back(each.identity);
  }
  const size_t more = short_ranks.size() - ranks.size();
  if (more > 0) StrAppend(&message, "\n  and ", more, " more");
  const ReshardMemoryNeed& first = short_ranks.front();
  return WithReason(absl::ResourceExhaustedError(message), Reason::kMemoryLimit,
                    {{fact::kHave, first.have_bytes},
                     {fact::kNeed, first.need_bytes},
                     {fact::kRank, StrJoin(ranks, ",")},
                     {fact::kIdentity, StrJoin(identities, ",")}});
}

}  // namespace shardmesh::server
