// The error of a move for which workers have too little memory.
#ifndef SHARDMESH_SERVER_RESHARD_SHORT_RANKS_H_
#define SHARDMESH_SERVER_RESHARD_SHORT_RANKS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/reshard/reshard_call.h"

namespace shardmesh::server {

// The maximum number of ranks that one error names.
inline constexpr size_t kShortRanksNamed = 16;

// Returns those ranks whose workers have less than they need, in the order of `memory`.
std::vector<ReshardMemoryNeed> ShortRanks(absl::Span<const ReshardMemoryNeed> memory);

// Returns text such as `--memory 3MiB`: with this limit all the workers have what they need. A
// worker keeps a part of more memory for the messages of its peers; the limit allows for that.
// Requires ranks from ShortRanks, at least one.
std::string MemoryFlagFor(absl::Span<const ReshardMemoryNeed> short_ranks);

// Returns RESOURCE_EXHAUSTED (MEMORY_LIMIT). The message begins with the advice. The message and
// the facts `rank` and `identity` name the first kShortRanksNamed ranks, the message each with what
// it has and needs. The facts `have` and `need` are those of the first rank. `work`: what needs the
// memory, such as `the reshard`. `list_flag`: the flag of the command that lists all ranks.
// Requires ranks from ShortRanks, at least one.
absl::Status TooLittleMemory(absl::Span<const ReshardMemoryNeed> short_ranks, std::string_view work,
                             std::string_view list_flag, std::string_view advice);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_SHORT_RANKS_H_
