// Pairwise exchange: every rank sends to every other rank. The owner of a part combines the
// operands in the order of the canonical tree (tree.h).
#include "worker/collective/pairwise.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/copy.h"
#include "worker/collective/message_reader.h"
#include "worker/collective/tree.h"

namespace shardmesh::worker {
namespace {

// Calls fn(place) for every other place of the group, beginning with the place after this rank's
// place. Each rank begins with a different place, so not all ranks send to the same place first.
template <typename Fn>
absl::Status ForEachPeer(const DeviceGroup& group, Fn fn) {
  for (int64_t distance = 1; distance < group.size(); ++distance) {
    SHARDMESH_RETURN_IF_ERROR(fn((group.place() + distance) % group.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckRoot(std::string_view what, const DeviceGroup& group, int64_t root) {
  if (root >= 0 && root < group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(what, " with place ", root, " of a group of ", group.size(), " ranks as its root"));
}

absl::Status CheckPerPlace(std::string_view what, const DeviceGroup& group, size_t given,
                           std::string_view of_what) {
  if (given == Index(group.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(what, " over ", group.size(), " ranks was given ", given, " ", of_what));
}

absl::Status CheckSameSize(std::string_view what, size_t mine, size_t out) {
  if (mine == out) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(what, " of ", mine, " bytes to memory of ", out, " bytes"));
}

// An operand cut into one part for each place, and the offset and size of each part's result.
struct EvenParts {
  absl::InlinedVector<OwnedBytes, 8> operands;
  absl::InlinedVector<int64_t, 8> result_cuts;  // in bytes
  absl::InlinedVector<int64_t, 8> result_bytes;
};

EvenParts PartsOf(const Combiner& combiner, const OwnedBytes& operand, int64_t ranks) {
  EvenParts parts;
  const std::vector<int64_t> cuts = EvenCuts(SizeOf(operand) / combiner.operand_bytes, ranks);
  for (size_t place = 0; place + 1 < cuts.size(); ++place) {
    parts.operands.push_back(PartOf(operand, cuts[place] * combiner.operand_bytes,
                                    cuts[place + 1] * combiner.operand_bytes));
    parts.result_cuts.push_back(cuts[place] * combiner.result_bytes);
    parts.result_bytes.push_back((cuts[place + 1] - cuts[place]) * combiner.result_bytes);
  }
  return parts;
}

// Combines this rank's operand with the messages of all peers as they arrive, one block at a time.
// The arguments of the constructor outlive the object.
class ArrivingSum {
 public:
  // `own_bytes` is the size of this rank's operand, and of each message; `out` gets the results.
  ArrivingSum(const CollectiveCall& call, const Combiner& combiner, const Tag& tag,
              int64_t own_bytes, absl::Span<char> out)
      : call_(call),
        combiner_(combiner),
        out_(out),
        count_(own_bytes / combiner.operand_bytes),
        readers_(Index(call.group->size())),
        operands_(Index(call.group->size())),
        tree_(combiner, call.group->size(), count_),
        counter_(call, (call.group->size() - 1) * own_bytes) {
    for (int64_t place = 0; place < call.group->size(); ++place) {
      if (place == call.group->place()) continue;
      readers_[Index(place)].emplace(call.link, call.group->device_at(place), tag, own_bytes,
                                     combiner.operand_bytes, call.deadline);
    }
  }

  // Combines the next elements of this rank's operand.
  absl::Status Add(absl::Span<const char> own) {
    const DeviceGroup& group = *call_.group;
    const int64_t peers = group.size() - 1;
    const int64_t end = done_ + static_cast<int64_t>(own.size()) / combiner_.operand_bytes;
    const char* next = own.data();
    while (done_ < end) {
      int64_t block = std::min(end - done_, tree_.block_elements());
      for (int64_t place = 0; place < group.size(); ++place) {
        if (place == group.place()) {
          operands_[Index(place)] = next;
          continue;
        }
        SHARDMESH_ASSIGN_OR_RETURN(absl::Span<const char> elements, readers_[Index(place)]->Peek());
        operands_[Index(place)] = elements.data();
        block = std::min(block, static_cast<int64_t>(elements.size()) / combiner_.operand_bytes);
      }
      tree_.Combine(operands_, block, out_.data() + done_ * combiner_.result_bytes);
      done_ += block;
      next += block * combiner_.operand_bytes;
      counter_.Add(peers * block * combiner_.operand_bytes);
      for (int64_t place = 0; place < group.size(); ++place) {
        if (place == group.place()) continue;
        readers_[Index(place)]->Skip(Index(block * combiner_.operand_bytes));
        if (done_ == count_ && call_.received) call_.received(group.device_at(place));
      }
    }
    return absl::OkStatus();
  }

 private:
  const CollectiveCall& call_;
  const Combiner& combiner_;
  const absl::Span<char> out_;
  const int64_t count_;  // elements
  int64_t done_ = 0;
  absl::InlinedVector<std::optional<MessageReader>, 8> readers_;  // by place
  absl::InlinedVector<const char*, 8> operands_;                  // of one block, by place
  TreeCombiner tree_;
  ArrivalCounter counter_;
};

// Combines this rank's operand with the messages of all peers.
absl::Status CombineAll(const CollectiveCall& call, const Combiner& combiner,
                        absl::Span<const char> own, absl::Span<char> out) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  ArrivingSum sum(call, combiner, tag, static_cast<int64_t>(own.size()), out);
  return sum.Add(own);
}

// Sends part_for(place) to the peer at each place. Passes the parts that this rank gets, its own
// part included, to `place_fn`.
absl::Status ExchangeParts(const CollectiveCall& call,
                           absl::FunctionRef<const OwnedBytes&(int64_t place)> part_for,
                           absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("an exchange", group, sizes_bytes.size(), "sizes"));
  const OwnedBytes& own = part_for(group.place());
  if (SizeOf(own) != sizes_bytes[Index(group.place())]) {
    return absl::InvalidArgumentError(StrCat("an exchange was given ", SizeOf(own),
                                             " bytes where this rank is to bring ",
                                             sizes_bytes[Index(group.place())]));
  }
  SHARDMESH_RETURN_IF_ERROR(
      ForEachPeer(group, [&](int64_t place) { return SendTo(call, place, 0, part_for(place)); }));
  if (!own.bytes.empty()) place_fn(group.place(), 0, own.bytes);
  return ForEachPeer(group, [&](int64_t place) {
    return ReceivePieces(call, place, 0, sizes_bytes[Index(place)],
                         [&](int64_t offset_bytes, absl::Span<const char> bytes) {
                           place_fn(place, offset_bytes, bytes);
                         });
  });
}

}  // namespace

absl::Status PairwiseReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                                   absl::Span<const OwnedBytes> parts, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("reduce-scatter", group, parts.size(), "parts"));
  for (const OwnedBytes& part : parts) {
    if (SizeOf(part) % combiner.operand_bytes != 0) {
      return absl::InvalidArgumentError(StrCat("a part of ", SizeOf(part),
                                               " bytes to reduce does not consist of elements of ",
                                               combiner.operand_bytes, " bytes"));
    }
  }
  const OwnedBytes& own = parts[Index(group.place())];
  SHARDMESH_RETURN_IF_ERROR(CheckReduction("reduce-scatter", combiner, own.bytes, out.size()));
  SHARDMESH_RETURN_IF_ERROR(ForEachPeer(
      group, [&](int64_t place) { return SendTo(call, place, 0, parts[Index(place)]); }));
  return CombineAll(call, combiner, own.bytes, out);
}

absl::Status PairwiseReduceScatterAsMade(
    const CollectiveCall& call, const Combiner& combiner,
    absl::FunctionRef<absl::StatusOr<OwnedBytes>(int64_t place)> make_part, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(ForEachPeer(group, [&](int64_t place) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(OwnedBytes part, make_part(place));
    if (SizeOf(part) % combiner.operand_bytes != 0) {
      return absl::InvalidArgumentError(StrCat("a part of ", SizeOf(part),
                                               " bytes to reduce does not consist of elements of ",
                                               combiner.operand_bytes, " bytes"));
    }
    return SendTo(call, place, 0, std::move(part));
  }));
  if (static_cast<int64_t>(out.size()) % combiner.result_bytes != 0) {
    return absl::InvalidArgumentError(
        StrCat("a result of ", out.size(), " bytes in elements of ", combiner.result_bytes));
  }
  int64_t left_bytes =
      static_cast<int64_t>(out.size()) / combiner.result_bytes * combiner.operand_bytes;
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  ArrivingSum sum(call, combiner, tag, left_bytes, out);
  while (left_bytes > 0) {
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedBytes own, make_part(group.place()));
    if (own.bytes.empty() || SizeOf(own) > left_bytes ||
        SizeOf(own) % combiner.operand_bytes != 0) {
      return absl::InvalidArgumentError(StrCat("the next ", SizeOf(own), " of ", left_bytes,
                                               " bytes to reduce do not fit elements of ",
                                               combiner.operand_bytes, " bytes"));
    }
    SHARDMESH_RETURN_IF_ERROR(sum.Add(own.bytes));
    left_bytes -= SizeOf(own);
  }
  return absl::OkStatus();
}

absl::Status PairwiseAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  return ExchangeParts(
      call, [&](int64_t) -> const OwnedBytes& { return mine; }, sizes_bytes, place_fn);
}

absl::Status PairwiseAllToAll(const CollectiveCall& call, absl::Span<const OwnedBytes> parts,
                              absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("an exchange", *call.group, parts.size(), "parts"));
  return ExchangeParts(
      call, [&](int64_t place) -> const OwnedBytes& { return parts[Index(place)]; }, sizes_bytes,
      place_fn);
}

absl::Status PairwiseAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, const OwnedMutableBytes& out) {
  SHARDMESH_RETURN_IF_ERROR(
      CheckReduction("all-reduce", combiner, operand.bytes, out.bytes.size()));
  const DeviceGroup& group = *call.group;
  const EvenParts parts = PartsOf(combiner, operand, group.size());
  const int64_t begin_bytes = parts.result_cuts[Index(group.place())];
  const OwnedMutableBytes own =
      PartOf(out, begin_bytes, begin_bytes + parts.result_bytes[Index(group.place())]);
  SHARDMESH_RETURN_IF_ERROR(PairwiseReduceScatter(call, combiner, parts.operands, own.bytes));

  CollectiveCall gather = call;
  gather.round = call.round + 1;
  return PairwiseAllGather(gather, OwnedBytes{own.bytes, own.owner}, parts.result_bytes,
                           [&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
                             // This rank's part is already in `out`.
                             if (place == group.place()) return;
                             CopyReceived(
                                 call, bytes,
                                 out.bytes.data() + parts.result_cuts[Index(place)] + offset_bytes);
                           });
}

absl::Status DirectAllReduce(const CollectiveCall& call, const Combiner& combiner,
                             const OwnedBytes& operand, absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(CheckReduction("all-reduce", combiner, operand.bytes, out.size()));
  SHARDMESH_RETURN_IF_ERROR(
      ForEachPeer(*call.group, [&](int64_t place) { return SendTo(call, place, 0, operand); }));
  return CombineAll(call, combiner, operand.bytes, out);
}

absl::Status DirectReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                          const OwnedBytes& operand, absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(CheckRoot("reduce", *call.group, root));
  if (root != call.group->place()) return SendTo(call, root, 0, operand);
  SHARDMESH_RETURN_IF_ERROR(CheckReduction("reduce", combiner, operand.bytes, out.size()));
  return CombineAll(call, combiner, operand.bytes, out);
}

absl::Status PairwiseReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckRoot("reduce", group, root));
  const bool is_root = root == group.place();
  if (is_root) {
    SHARDMESH_RETURN_IF_ERROR(CheckReduction("reduce", combiner, operand.bytes, out.size()));
  }
  const EvenParts parts = PartsOf(combiner, operand, group.size());
  const int64_t own_bytes = parts.result_bytes[Index(group.place())];
  OwnedMutableBytes own;
  if (is_root) {
    own.bytes = out.subspan(Index(parts.result_cuts[Index(root)]), Index(own_bytes));
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(own, Scratch(call, own_bytes));
  }
  SHARDMESH_RETURN_IF_ERROR(PairwiseReduceScatter(call, combiner, parts.operands, own.bytes));

  CollectiveCall gather = call;
  gather.round = call.round + 1;
  return PairwiseGather(gather, root, OwnedBytes{own.bytes, own.owner}, parts.result_bytes,
                        [&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
                          if (place == root) return;  // the root's part is already in `out`
                          CopyReceived(call, bytes,
                                       out.data() + parts.result_cuts[Index(place)] + offset_bytes);
                        });
}

absl::Status PairwiseBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(CheckRoot("broadcast", *call.group, root));
  if (root != call.group->place()) return ReceiveInto(call, root, 0, out);
  SHARDMESH_RETURN_IF_ERROR(CheckSameSize("broadcast", mine.bytes.size(), out.size()));
  SHARDMESH_RETURN_IF_ERROR(
      ForEachPeer(*call.group, [&](int64_t place) { return SendTo(call, place, 0, mine); }));
  CopyUnlessThere(mine.bytes, out);
  return absl::OkStatus();
}

absl::Status PairwiseGather(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckRoot("gather", group, root));
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("gather", group, sizes_bytes.size(), "sizes"));
  if (SizeOf(mine) != sizes_bytes[Index(group.place())]) {
    return absl::InvalidArgumentError(StrCat("gather was given ", SizeOf(mine),
                                             " bytes where this rank is to bring ",
                                             sizes_bytes[Index(group.place())]));
  }
  if (root != group.place()) return SendTo(call, root, 0, mine);
  if (!mine.bytes.empty()) place_fn(root, 0, mine.bytes);
  return ForEachPeer(group, [&](int64_t place) {
    return ReceivePieces(call, place, 0, sizes_bytes[Index(place)],
                         [&](int64_t offset_bytes, absl::Span<const char> bytes) {
                           place_fn(place, offset_bytes, bytes);
                         });
  });
}

absl::Status PairwiseScatter(const CollectiveCall& call, int64_t root,
                             absl::Span<const OwnedBytes> parts, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckRoot("scatter", group, root));
  if (root != group.place()) return ReceiveInto(call, root, 0, out);
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("scatter", group, parts.size(), "parts"));
  const OwnedBytes& own = parts[Index(root)];
  SHARDMESH_RETURN_IF_ERROR(CheckSameSize("scatter", own.bytes.size(), out.size()));
  SHARDMESH_RETURN_IF_ERROR(ForEachPeer(
      group, [&](int64_t place) { return SendTo(call, place, 0, parts[Index(place)]); }));
  CopyBytes(out.data(), own.bytes.data(), out.size());
  return absl::OkStatus();
}

absl::Status Permute(const CollectiveCall& call, absl::Span<const std::optional<int64_t>> targets,
                     const OwnedBytes& mine, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  SHARDMESH_RETURN_IF_ERROR(CheckPerPlace("permute", group, targets.size(), "targets"));
  SHARDMESH_RETURN_IF_ERROR(CheckSameSize("permute", mine.bytes.size(), out.size()));
  std::vector<bool> is_target(targets.size());
  std::optional<int64_t> source;
  for (int64_t place = 0; place < group.size(); ++place) {
    const std::optional<int64_t> target = targets[Index(place)];
    if (!target.has_value()) continue;
    if (*target < 0 || *target >= group.size() || is_target[Index(*target)]) {
      return absl::InvalidArgumentError(
          StrCat("permute from place ", place, " to place ", *target, " of a group of ",
                 group.size(), " ranks: there is no such place, or it is a target already"));
    }
    is_target[Index(*target)] = true;
    if (*target == group.place()) source = place;
  }
  const std::optional<int64_t> target = targets[Index(group.place())];
  if (target.has_value() && *target != group.place()) {
    SHARDMESH_RETURN_IF_ERROR(SendTo(call, *target, 0, mine));
  }
  if (out.empty()) return absl::OkStatus();
  if (!source.has_value()) {
    std::memset(out.data(), 0, out.size());
    return absl::OkStatus();
  }
  if (*source != group.place()) return ReceiveInto(call, *source, 0, out);
  CopyBytes(out.data(), mine.bytes.data(), out.size());
  return absl::OkStatus();
}

absl::Status PairwiseBarrier(const CollectiveCall& call) {
  static constexpr char kHere = 1;
  const std::vector<int64_t> sizes_bytes(Index(call.group->size()), 1);
  return PairwiseAllGather(call, OwnedBytes{absl::MakeConstSpan(&kHere, 1), nullptr}, sizes_bytes,
                           [](int64_t, int64_t, absl::Span<const char>) {});
}

}  // namespace shardmesh::worker
