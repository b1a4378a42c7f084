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

// Returns whether the kind combines elements: all-reduce, reduce-scatter and reduce do.
bool IsReduction(CollectiveKind kind);

// Returns the algorithms of a kind, without kAuto. kPairwise comes first, so the list is never
// empty.
absl::Span<const CollectiveAlgorithm> AlgorithmsOf(CollectiveKind kind);

// Returns OK if the kind has the algorithm and `order` allows it. Else returns INVALID_ARGUMENT
// (BAD_FIELD), which lists the valid algorithms. A ring combines in an order that is not the
// canonical one, so for a reduction it is valid only with kFastest. kAuto is never valid: choose an
// algorithm first.
absl::Status CheckAlgorithm(CollectiveKind kind, CollectiveAlgorithm algorithm,
                            CollectiveOrder order);

// Returns whether a rank may make its result in its operand's memory, if operand and result have
// the same size. It may if no byte of the operand is overwritten before all receivers of the byte
// have used it. True for all-reduce by pairwise, halving or ring: the result of a part exists only
// after all operands of this part have been combined. True for broadcast, where the root's operand
// is its result, and for barrier.
bool MayOverwriteOperand(CollectiveKind kind, CollectiveAlgorithm algorithm);

// The data of a collective. `bytes` is the size of one rank's operand. For all-gather and gather,
// that is the rank's own part. For all-to-all and scatter, it is all parts together.
struct CollectiveLoad {
  int64_t ranks = 1;  // ranks in a group, at least 1
  int64_t bytes = 0;
  // Bytes of the operand once it is converted to partial results: `bytes`, or twice that for F16
  // and BF16.
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
// All-reduce by halving sends half the operand at the first level, partial results from the second
// level on, and at last results: S/2 + W (1/2 - 1/P) + S (P-1)/P bytes. In a group of one rank all
// costs are 0.
//
// If all ranks share memory, only the receiver pays for a message, because it reads the bytes in
// place. The bytes on the way are then S for a pairwise broadcast and S/P for a scatter. For all
// other rows of the table they do not change.
struct CollectiveCost {
  int64_t rounds = 0;      // each round starts after the round before it
  int64_t messages = 0;    // the number sent or received; the larger counts
  int64_t crowd = 0;       // messages that may share the link of one rank or host
  int64_t sent_bytes = 0;  // to peers
  // "On the way": the larger of two numbers: the bytes that the busiest rank receives, one after
  // the other, and the bytes that it sends.
  int64_t way_bytes = 0;
  int64_t combined_bytes = 0;    // bytes of operands that the rank combines with other operands
  int64_t shared_way_bytes = 0;  // way_bytes if all ranks share memory

  friend bool operator==(const CollectiveCost&, const CollectiveCost&) = default;
};

// Returns the cost of a collective by the table above. Numbers beyond 64 bits are capped. Requires
// an algorithm of the kind.
CollectiveCost CostOf(CollectiveKind kind, CollectiveAlgorithm algorithm,
                      const CollectiveLoad& load);

// Rates of the links between ranks, and of combination. The defaults apply if nothing was measured.
// The defaults are the rates of gRPC streams on loopback, and of a core that reads and writes
// operands at about 10 GB/s.
struct LinkCost {
  // Time of a round in which each of two ranks sends 8 bytes and waits for the peer's 8 bytes.
  double latency_seconds = 20e-6;
  // Time of a byte while two ranks send each other long messages and copy the bytes that they
  // receive.
  double seconds_per_byte = 1 / 2.5e9;
  double seconds_per_byte_combined = 1 / 10e9;
  bool shares_memory = false;  // all ranks share memory with each other
  bool is_measured = false;    // if false, all rates are the defaults
};

// The predicted time:
//     latency * (rounds + (messages - rounds) / 4)
//   + seconds per byte * bytes on the way * (1 + max(0, crowd - 16) / 128)
//   + seconds per byte combined * combined_bytes
// A quarter of the latency is assumed to be work of the rank for each message, which every further
// message of the same round adds. The other three quarters are waiting. More than 16 concurrent
// senders (`crowd`) are assumed to delay each other; 128 more senders double the time of a byte. If
// all ranks send to one rank, all of them are concurrent senders. If ranks half the group apart
// exchange, half of the group are. The quarter, 16 and 128 are assumptions, not measurements.
double PredictedSeconds(const CollectiveCost& cost, const LinkCost& link);

// Returns whether the two costs are close enough to be treated as one: both or neither share
// memory, and no figure of one differs from that of the other by a factor of 1.5 or more.
bool AreAlike(const LinkCost& a, const LinkCost& b);

// The algorithm to use for each kind, regardless of predicted cost. For kinds that are not in the
// map, the predicted cost decides.
using PreferredAlgorithms = std::map<CollectiveKind, CollectiveAlgorithm>;

// Parses KIND=ALGORITHM,...; an empty text gives an empty map. INVALID_ARGUMENT (BAD_FIELD) for
// text of another form, for an unknown kind, for an algorithm that the kind does not have, and for
// a kind that is named twice. For an unknown name, the message lists the known names. Example:
// "all-reduce=halving,broadcast=chain".
absl::StatusOr<PreferredAlgorithms> ParsePreferredAlgorithms(std::string_view text);

// Returns the kind's algorithm in `preferred` if it has one that `order` allows. Otherwise returns
// the algorithm with the least predicted time among those that `order` allows. If several have this
// time, returns the one that comes first in AlgorithmsOf. Never kAuto. Example: all-reduce over 4
// ranks, 8 bytes -> direct; 16 MiB -> pairwise.
CollectiveAlgorithm ChooseAlgorithm(CollectiveKind kind, const CollectiveLoad& load,
                                    CollectiveOrder order, const LinkCost& link = {},
                                    const PreferredAlgorithms& preferred = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_
