// Sending, receiving and combining between two ranks.
#include "worker/collective/collective_call.h"

#include <algorithm>
#include <utility>

#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/copy.h"
#include "worker/collective/message_reader.h"
#include "worker/collective/tree.h"

namespace shardmesh::worker {
namespace {

absl::StatusOr<Tag> TagOf(const CollectiveCall& call, int64_t round) {
  return Tag::Create(call.step, call.op, call.round + round);
}

void ReportReceived(const CollectiveCall& call, DeviceId peer) {
  if (call.received) call.received(peer);
}

}  // namespace

std::vector<int64_t> EvenCuts(int64_t count, int64_t parts) {
  std::vector<int64_t> cuts(Index(parts) + 1);
  for (int64_t i = 0; i <= parts; ++i) {
    cuts[Index(i)] = count / parts * i + std::min(i, count % parts);
  }
  return cuts;
}

absl::Status SendTo(const CollectiveCall& call, int64_t place, int64_t round, OwnedBytes bytes) {
  if (bytes.bytes.empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, TagOf(call, round));
  return call.link->Send(call.group->device_at(place), tag, std::move(bytes));
}

absl::Status ReceivePieces(
    const CollectiveCall& call, int64_t place, int64_t round, int64_t message_bytes,
    absl::FunctionRef<void(int64_t offset_bytes, absl::Span<const char> bytes)> take) {
  const DeviceId peer = call.group->device_at(place);
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, TagOf(call, round));
  ArrivalCounter counter(call, message_bytes);
  for (int64_t offset_bytes = 0; offset_bytes < message_bytes;) {
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedBytes piece,
                               call.link->Receive(peer, tag, message_bytes, call.deadline));
    take(offset_bytes, piece.bytes);
    offset_bytes += SizeOf(piece);
    counter.Add(SizeOf(piece));
  }
  ReportReceived(call, peer);
  return absl::OkStatus();
}

void CopyReceived(const CollectiveCall& call, absl::Span<const char> bytes, char* to) {
  CopyBytes(to, bytes.data(), bytes.size());
  if (call.copied != nullptr) call.copied->received += static_cast<int64_t>(bytes.size());
}

void CopyUnlessThere(absl::Span<const char> bytes, absl::Span<char> out) {
  if (bytes.data() != out.data()) CopyBytes(out.data(), bytes.data(), out.size());
}

absl::Status ReceiveInto(const CollectiveCall& call, int64_t place, int64_t round,
                         absl::Span<char> out) {
  return ReceivePieces(call, place, round, static_cast<int64_t>(out.size()),
                       [&call, out](int64_t offset_bytes, absl::Span<const char> bytes) {
                         CopyReceived(call, bytes, out.data() + offset_bytes);
                       });
}

absl::Status CombineArriving(const CollectiveCall& call, const Combiner& combiner,
                             const CombineSide& mine, int64_t place, int64_t round,
                             ElementForm arriving, char* out) {
  const int64_t mine_bytes =
      mine.form == ElementForm::kOperand ? combiner.operand_bytes : combiner.partial_bytes;
  const int64_t their_bytes =
      arriving == ElementForm::kOperand ? combiner.operand_bytes : combiner.partial_bytes;
  const int64_t count = static_cast<int64_t>(mine.elements.size()) / mine_bytes;
  if (count == 0) return absl::OkStatus();
  const bool widens_mine = mine.form == ElementForm::kOperand && combiner.widen;
  const bool widens_theirs = arriving == ElementForm::kOperand && combiner.widen;
  const int64_t block_elements = TreeCombiner::kBlockBytes / combiner.partial_bytes;
  std::vector<char> widened_mine(widens_mine ? Index(TreeCombiner::kBlockBytes) : 0);
  std::vector<char> widened_theirs(widens_theirs ? Index(TreeCombiner::kBlockBytes) : 0);

  const DeviceId peer = call.group->device_at(place);
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, TagOf(call, round));
  MessageReader reader(call.link, peer, tag, count * their_bytes, their_bytes, call.deadline);
  ArrivalCounter counter(call, count * their_bytes);
  for (int64_t done = 0; done < count;) {
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<const char> arrived, reader.Peek());
    const int64_t block = std::min(
        {count - done, block_elements, static_cast<int64_t>(arrived.size()) / their_bytes});
    const char* theirs = arrived.data();
    if (widens_theirs) {
      combiner.widen(theirs, block, widened_theirs.data());
      theirs = widened_theirs.data();
    }
    const char* own = mine.elements.data() + done * mine_bytes;
    if (widens_mine) {
      combiner.widen(own, block, widened_mine.data());
      own = widened_mine.data();
    }
    combiner.combine(mine.is_left ? own : theirs, mine.is_left ? theirs : own, block,
                     out + done * combiner.partial_bytes);
    reader.Skip(Index(block * their_bytes));
    counter.Add(block * their_bytes);
    done += block;
  }
  ReportReceived(call, peer);
  return absl::OkStatus();
}

absl::StatusOr<OwnedMutableBytes> Scratch(const CollectiveCall& call, int64_t size_bytes) {
  if (size_bytes == 0) return OwnedMutableBytes();
  if (call.scratch) return call.scratch(size_bytes);
  auto bytes = std::shared_ptr<char[]>(new char[Index(size_bytes)]);
  return OwnedMutableBytes{absl::MakeSpan(bytes.get(), Index(size_bytes)), bytes};
}

OwnedBytes PartOf(const OwnedBytes& whole, int64_t begin_bytes, int64_t end_bytes) {
  return {whole.bytes.subspan(Index(begin_bytes), Index(end_bytes - begin_bytes)), whole.owner};
}

OwnedMutableBytes PartOf(const OwnedMutableBytes& whole, int64_t begin_bytes, int64_t end_bytes) {
  return {whole.bytes.subspan(Index(begin_bytes), Index(end_bytes - begin_bytes)), whole.owner};
}

void CombineAlone(const Combiner& combiner, absl::Span<const char> operands, char* results) {
  const int64_t count = static_cast<int64_t>(operands.size()) / combiner.operand_bytes;
  TreeCombiner tree(combiner, 1, count);
  for (int64_t done = 0; done < count;) {
    const int64_t block = std::min(count - done, tree.block_elements());
    const char* const operand = operands.data() + done * combiner.operand_bytes;
    tree.Combine({operand}, block, results + done * combiner.result_bytes);
    done += block;
  }
}

absl::Status CheckReduction(std::string_view what, const Combiner& combiner,
                            absl::Span<const char> operand, size_t result_bytes) {
  const auto operand_bytes = static_cast<int64_t>(operand.size());
  if (operand_bytes % combiner.operand_bytes != 0 ||
      Index(operand_bytes / combiner.operand_bytes * combiner.result_bytes) != result_bytes) {
    return absl::InvalidArgumentError(StrCat(
        what, " of ", operand_bytes, " bytes in elements of ", combiner.operand_bytes, " to ",
        result_bytes, " bytes in elements of ", combiner.result_bytes, ": they do not fit"));
  }
  return absl::OkStatus();
}

absl::Status CheckAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                            absl::Span<const int64_t> sizes_bytes) {
  const int64_t ranks = call.group->size();
  if (static_cast<int64_t>(sizes_bytes.size()) != ranks ||
      SizeOf(mine) != sizes_bytes[Index(call.group->place())]) {
    return absl::InvalidArgumentError(StrCat("all-gather over ", ranks, " ranks was given ",
                                             sizes_bytes.size(), " sizes and ", SizeOf(mine),
                                             " bytes: they do not fit"));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
