// The algorithms of each collective, their costs, and the choice of the fastest by prediction.
#ifndef SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_
#define SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_

#include <cstdint>
#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"

namespace shardmesh {

// all-reduce, reduce-scatter and reduce: collectives that combine elements.
bool IsReduction(CollectiveKind kind);

// The algorithms of a kind without kAuto; kPairwise first. Never empty.
absl::Span<const CollectiveAlgorithm> AlgorithmsOf(CollectiveKind kind);

// INVALID_ARGUMENT (BAD_FIELD), with the valid algorithms, unless the algorithm belongs to the
// kind. A ring has its own order of combination: it is valid for a reduction only with kFastest.
// kAuto is never valid: choose an algorithm first.
absl::Status CheckAlgorithm(CollectiveKind kind, CollectiveAlgorithm algorithm,
                            CollectiveOrder order);

// Whether a rank's result may be made in its operand's memory, if both have one size: no byte of
// the operand is overwritten before its receivers have used it. True for all-reduce by pairwise,
// halving or ring: a part's result comes back from the rank that combined it. True for broadcast,
// where the root's operand is its result, and for barrier.
bool MayOverwriteOperand(CollectiveKind kind, CollectiveAlgorithm algorithm);

// The data of a collective. `bytes` is the operand of one rank: its own part for all-gather and
// gather, all parts together for all-to-all and scatter.
struct CollectiveLoad {
  int64_t ranks = 1;  // in a group, at least 1
  int64_t bytes = 0;
  // Bytes of the operand as partial results: `bytes`, or twice that for F16 and BF16.
  int64_t partial_bytes = 0;
};

// The work of the busiest rank of the group. For P ranks, S = bytes, W = partial_bytes, L =
// ceil(log2 P) and c = min(S, 256 KiB):
//
//   kind, algorithm           rounds  messages  crowd  sent          on the way   combined
//   all-reduce     pairwise   2       2 (P-1)   P-1    2 S (P-1)/P   = sent       S (P-1)/P
//                  direct     1       P-1       P-1    S (P-1)       = sent       S (P-1)
//                  doubling   L       L         P/2    W L           = sent       S L
//                  halving    2 L     2 L       P/2    see below     = sent       S (P-1)/P
//                  ring       2(P-1)  2 (P-1)   1      (W+S)(P-1)/P  = sent       S (P-1)/P
//   reduce-scatter pairwise   1       P-1       P-1    S (P-1)/P     = sent       S (P-1)/P
//                  ring       P-1     P-1       1      W (P-1)/P     = sent       S (P-1)/P
//   all-gather     pairwise   1       P-1       P-1    S (P-1)       = sent       0
//                  doubling   L       L         P/2    S (P-1)       = sent       0
//                  ring       P-1     P-1       1      S (P-1)       = sent       0
//   all-to-all     pairwise   1       P-1       P-1    S (P-1)/P     = sent       0
//   broadcast      pairwise   1       P-1       1      S (P-1)       = sent       0
//                  binomial   L       L         P/2    S L           = sent       0
//                  chain      P-1     P-1       1      S             S + (P-2) c  0
//   reduce         pairwise   2       2 (P-1)   P-1    S             2 S (P-1)/P  S (P-1)/P
//                  direct     1       P-1       P-1    S             S (P-1)      S (P-1)
//                  binomial   L       L         P/2    W             W L          S L
//   gather         pairwise   1       P-1       P-1    S             S (P-1)      0
//   scatter        pairwise   1       P-1       1      S (P-1)/P     = sent       0
//   permute        pairwise   1       1         1      S             = sent       0
//   barrier        pairwise   1       P-1       P-1    P-1           = sent       0
//                  doubling   L       L         P/2    L             = sent       0
//
// Halving sends the operand at the first level, partial results from the second on, and then
// results: S/2 + W (1/2 - 1/P) + S (P-1)/P. A single rank has none of these costs.
//
// With shared memory only the receiver pays for a message: it reads the bytes in place. On the way
// through the busiest rank are then S for a pairwise broadcast, S/P for a scatter.
struct CollectiveCost {
  int64_t rounds = 0;            // each starts after the one before it
  int64_t messages = 0;          // sent or received: the larger number
  int64_t crowd = 0;             // messages that may share a link, of a rank or host
  int64_t sent_bytes = 0;        // to peers
  int64_t way_bytes = 0;         // in sequence through the busiest rank, either way
  int64_t combined_bytes = 0;    // operand bytes combined with other operands
  int64_t shared_way_bytes = 0;  // like way_bytes, if all ranks share memory

  friend bool operator==(const CollectiveCost&, const CollectiveCost&) = default;
};

// Numbers beyond 64 bits are capped. Requires an algorithm of the kind.
CollectiveCost CostOf(CollectiveKind kind, CollectiveAlgorithm algorithm,
                      const CollectiveLoad& load);

// Rates of the links between ranks. The defaults apply without measurements: they are those of gRPC
// streams on loopback. A core reads and writes operands at about 10 GB/s.
struct LinkCost {
  // Time of a round in which two ranks send each other 8 bytes and wait for them.
  double latency_seconds = 20e-6;
  // Measured while two ranks send each other long messages and copy the received bytes.
  double seconds_per_byte = 1 / 2.5e9;
  double seconds_per_byte_combined = 1 / 10e9;
  bool shares_memory = false;  // all ranks with each other
  bool is_measured = false;    // false: all rates are the defaults
};

// The predicted time:
//     latency * (rounds + (messages - rounds) / 4)
//   + seconds per byte * bytes on the way * (1 + max(0, crowd - 16) / 128)
//   + seconds per byte combined * combined_bytes
// A quarter of a message's latency is assumed to be work of the rank, which further messages of the
// same round add; the rest is waiting. More than 16 concurrent senders are assumed to delay each
// other. If all send to one rank, they are the whole group; if ranks half the group apart exchange,
// half of it. Both numbers are assumptions, not measurements.
double PredictedSeconds(const CollectiveCost& cost, const LinkCost& link);

// Whether both or neither share memory, and no figure differs by a factor of 1.5 or more.
bool AreAlike(const LinkCost& a, const LinkCost& b);

// The algorithm of each kind, regardless of predicted cost. For missing kinds the cost decides.
using PreferredAlgorithms = std::map<CollectiveKind, CollectiveAlgorithm>;

// Reads KIND=ALGORITHM,...; an empty text has none. INVALID_ARGUMENT (BAD_FIELD), with the known
// names, for an unknown kind or algorithm of a kind, and for a kind that is named twice.
// Example: "all-reduce=halving,broadcast=chain".
absl::StatusOr<PreferredAlgorithms> ParsePreferredAlgorithms(std::string_view text);

// The preferred algorithm if `order` allows it; otherwise the allowed one with the least predicted
// time, or the first of equals in AlgorithmsOf. Never kAuto.
// Example: all-reduce over 4 ranks, 8 bytes -> direct; 16 MiB -> pairwise.
CollectiveAlgorithm ChooseAlgorithm(CollectiveKind kind, const CollectiveLoad& load,
                                    CollectiveOrder order, const LinkCost& link = {},
                                    const PreferredAlgorithms& preferred = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_
