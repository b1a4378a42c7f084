// Pairwise exchange: everyone sends to everyone, the owner of a part combines in tree order.
#include "worker/collective/pairwise.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "worker/collective/message_reader.h"
#include "worker/collective/tree.h"

namespace shardmesh::worker {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

int64_t SizeOf(const OwnedBytes& bytes) { return static_cast<int64_t>(bytes.bytes.size()); }

// Calls fn(place, device) for every place of the group but the own, beginning with the next one, so
// that the ranks do not all send to the same one first.
template <typename Fn>
absl::Status ForEachPeer(const DeviceGroup& group, Fn fn) {
  for (int64_t distance = 1; distance < group.size(); ++distance) {
    const int64_t place = (group.place() + distance) % group.size();
    SHARDMESH_RETURN_IF_ERROR(fn(place, group.device_at(place)));
  }
  return absl::OkStatus();
}

void ReportReceived(const CollectiveCall& call, DeviceId peer) {
  if (call.received) call.received(peer);
}

OwnedBytes Part(const OwnedBytes& whole, int64_t begin_bytes, int64_t end_bytes) {
  return {whole.bytes.subspan(Index(begin_bytes), Index(end_bytes - begin_bytes)), whole.owner};
}

// Receives a message piece by piece: take(offset_bytes, bytes).
template <typename Fn>
absl::Status ReceiveInPieces(const CollectiveCall& call, DeviceId peer, const Tag& tag,
                             int64_t message_bytes, Fn take) {
  for (int64_t offset_bytes = 0; offset_bytes < message_bytes;) {
    SHARDMESH_ASSIGN_OR_RETURN(OwnedBytes piece,
                               call.link->Receive(peer, tag, message_bytes, call.deadline));
    take(offset_bytes, piece.bytes);
    offset_bytes += SizeOf(piece);
  }
  ReportReceived(call, peer);
  return absl::OkStatus();
}

// Combines the own part with the messages of all peers, a block at a time, as they arrive.
absl::Status CombineArriving(const CollectiveCall& call, const Combiner& combiner, const Tag& tag,
                             absl::Span<const char> own, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  const auto own_bytes = static_cast<int64_t>(own.size());
  std::vector<std::optional<MessageReader>> readers(Index(group.size()));
  for (int64_t place = 0; place < group.size(); ++place) {
    if (place == group.place()) continue;
    readers[Index(place)].emplace(call.link, group.device_at(place), tag, own_bytes,
                                  combiner.operand_bytes, call.deadline);
  }

  TreeCombiner tree(combiner, group.size());
  std::vector<const char*> operands(Index(group.size()));
  const int64_t count = own_bytes / combiner.operand_bytes;
  for (int64_t done = 0; done < count;) {
    int64_t block = std::min(count - done, tree.block_elements());
    for (int64_t place = 0; place < group.size(); ++place) {
      if (place == group.place()) {
        operands[Index(place)] = own.data() + done * combiner.operand_bytes;
        continue;
      }
      SHARDMESH_ASSIGN_OR_RETURN(absl::Span<const char> elements, readers[Index(place)]->Peek());
      operands[Index(place)] = elements.data();
      block = std::min(block, static_cast<int64_t>(elements.size()) / combiner.operand_bytes);
    }
    tree.Combine(operands, block, out.data() + done * combiner.result_bytes);
    done += block;
    for (int64_t place = 0; place < group.size(); ++place) {
      if (place == group.place()) continue;
      readers[Index(place)]->Skip(Index(block * combiner.operand_bytes));
      if (done == count) ReportReceived(call, group.device_at(place));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> EvenCuts(int64_t count, int64_t parts) {
  std::vector<int64_t> cuts(Index(parts) + 1);
  for (int64_t i = 0; i <= parts; ++i) {
    cuts[Index(i)] = count / parts * i + std::min(i, count % parts);
  }
  return cuts;
}

absl::Status PairwiseReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                                   absl::Span<const OwnedBytes> parts, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  if (static_cast<int64_t>(parts.size()) != group.size()) {
    return absl::InvalidArgumentError(
        StrCat("reduce-scatter over ", group.size(), " ranks was given ", parts.size(), " parts"));
  }
  for (const OwnedBytes& part : parts) {
    if (SizeOf(part) % combiner.operand_bytes != 0) {
      return absl::InvalidArgumentError(StrCat("a part of ", SizeOf(part),
                                               " bytes to reduce does not consist of elements of ",
                                               combiner.operand_bytes, " bytes"));
    }
  }
  const OwnedBytes& own = parts[Index(group.place())];
  const int64_t result_bytes = SizeOf(own) / combiner.operand_bytes * combiner.result_bytes;
  if (static_cast<int64_t>(out.size()) != result_bytes) {
    return absl::InvalidArgumentError(StrCat("the result of a reduction has ", result_bytes,
                                             " bytes, its memory has ", out.size()));
  }

  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  SHARDMESH_RETURN_IF_ERROR(ForEachPeer(group, [&](int64_t place, DeviceId peer) {
    const OwnedBytes& part = parts[Index(place)];
    return part.bytes.empty() ? absl::OkStatus() : call.link->Send(peer, tag, part);
  }));
  return CombineArriving(call, combiner, tag, own.bytes, out);
}

absl::Status PairwiseAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  const DeviceGroup& group = *call.group;
  if (static_cast<int64_t>(sizes_bytes.size()) != group.size()) {
    return absl::InvalidArgumentError(StrCat("all-gather over ", group.size(), " ranks was given ",
                                             sizes_bytes.size(), " sizes"));
  }
  if (SizeOf(mine) != sizes_bytes[Index(group.place())]) {
    return absl::InvalidArgumentError(StrCat("all-gather was given ", SizeOf(mine),
                                             " bytes where this rank is to bring ",
                                             sizes_bytes[Index(group.place())]));
  }

  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  if (!mine.bytes.empty()) {
    SHARDMESH_RETURN_IF_ERROR(ForEachPeer(
        group, [&](int64_t, DeviceId peer) { return call.link->Send(peer, tag, mine); }));
    place_fn(group.place(), 0, mine.bytes);
  }
  return ForEachPeer(group, [&](int64_t place, DeviceId peer) {
    return ReceiveInPieces(call, peer, tag, sizes_bytes[Index(place)],
                           [&](int64_t offset_bytes, absl::Span<const char> bytes) {
                             place_fn(place, offset_bytes, bytes);
                           });
  });
}

absl::Status PairwiseAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, const OwnedMutableBytes& out) {
  const DeviceGroup& group = *call.group;
  const int64_t count = SizeOf(operand) / combiner.operand_bytes;
  if (SizeOf(operand) % combiner.operand_bytes != 0 ||
      static_cast<int64_t>(out.bytes.size()) != count * combiner.result_bytes) {
    return absl::InvalidArgumentError(StrCat(
        "all-reduce of ", SizeOf(operand), " bytes in elements of ", combiner.operand_bytes, " to ",
        out.bytes.size(), " bytes in elements of ", combiner.result_bytes, ": they do not fit"));
  }

  const std::vector<int64_t> cuts = EvenCuts(count, group.size());
  std::vector<OwnedBytes> parts;
  std::vector<int64_t> sizes_bytes;
  for (size_t place = 0; place + 1 < cuts.size(); ++place) {
    parts.push_back(Part(operand, cuts[place] * combiner.operand_bytes,
                         cuts[place + 1] * combiner.operand_bytes));
    sizes_bytes.push_back((cuts[place + 1] - cuts[place]) * combiner.result_bytes);
  }
  const auto begin_bytes = [&](int64_t place) {
    return cuts[Index(place)] * combiner.result_bytes;
  };
  const absl::Span<char> own = out.bytes.subspan(Index(begin_bytes(group.place())),
                                                 Index(sizes_bytes[Index(group.place())]));
  SHARDMESH_RETURN_IF_ERROR(PairwiseReduceScatter(call, combiner, parts, own));

  CollectiveCall gather = call;
  gather.round = call.round + 1;
  return PairwiseAllGather(gather, OwnedBytes{own, out.owner}, sizes_bytes,
                           [&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
                             if (place == group.place()) return;  // made where it belongs
                             std::memcpy(out.bytes.data() + begin_bytes(place) + offset_bytes,
                                         bytes.data(), bytes.size());
                           });
}

absl::Status PairwiseBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  if (root < 0 || root >= group.size()) {
    return absl::InvalidArgumentError(
        StrCat("broadcast from place ", root, " of a group of ", group.size(), " ranks"));
  }
  const bool is_root = root == group.place();
  if (is_root && mine.bytes.size() != out.size()) {
    return absl::InvalidArgumentError(
        StrCat("broadcast of ", mine.bytes.size(), " bytes to memory of ", out.size(), " bytes"));
  }
  if (out.empty()) return absl::OkStatus();

  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  if (!is_root) {
    return ReceiveInPieces(call, group.device_at(root), tag, static_cast<int64_t>(out.size()),
                           [&](int64_t offset_bytes, absl::Span<const char> bytes) {
                             std::memcpy(out.data() + offset_bytes, bytes.data(), bytes.size());
                           });
  }
  SHARDMESH_RETURN_IF_ERROR(
      ForEachPeer(group, [&](int64_t, DeviceId peer) { return call.link->Send(peer, tag, mine); }));
  std::memcpy(out.data(), mine.bytes.data(), out.size());
  return absl::OkStatus();
}

absl::Status PairwiseBarrier(const CollectiveCall& call) {
  static constexpr char kHere = 1;
  const std::vector<int64_t> sizes_bytes(Index(call.group->size()), 1);
  return PairwiseAllGather(call, OwnedBytes{absl::MakeConstSpan(&kHere, 1), nullptr}, sizes_bytes,
                           [](int64_t, int64_t, absl::Span<const char>) {});
}

}  // namespace shardmesh::worker
