// RunStep: binds memory to the values of the rank's part in a plan, and fills their tiles with
// kernels and collectives.
#include "worker/step/step_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "process/clock.h"
#include "process/failpoint.h"
#include "program/move_plan.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "worker/collective/collectives.h"
#include "worker/collective/region_move.h"
#include "worker/kernel/epilogue.h"
#include "worker/step/block_products.h"
#include "worker/step/rank_plan.h"
#include "worker/step/step_block.h"
#include "worker/step/step_tracer.h"
#include "worker/step/tile_products.h"
#include "worker/step/tile_update.h"
#include "worker/step/undo_log.h"
#include "worker/step/weight_cache.h"
#include "worker/tensor_op/fused_ops.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {
namespace {

// The bytes of this rank's tile of a value, once they exist, and the constants of the value.
struct LocalValue {
  const RankValue* constants = nullptr;
  OwnedBytes content = {};
  std::string array_id = {};  // set only for an operand that is an array
  // Has `content`; set only for temporaries, and for values that become the content of state.
  std::shared_ptr<StepBlock> block = nullptr;
  // Set if `block` is the memory of this tile of state.
  TileUpdate* update = nullptr;
  // Set if `block` is this memory, which becomes that of a tile of state.
  std::shared_ptr<Buffer> replacement = nullptr;
  PackedTilePtr packed = nullptr;  // instead of `content`, if the store holds an operand so
  // The memory of a donated operand, if a result is made in this memory. Set in the LocalValue of
  // the operand and in that of the result.
  std::shared_ptr<Buffer> donated = nullptr;

  Dtype dtype() const { return constants->dtype; }
  const Tile& tile() const { return constants->tile; }
  const Shape& shape() const { return constants->shape; }
  int64_t size_bytes() const { return constants->size_bytes; }
};

absl::Span<char> Mutable(const LocalValue& value) {
  // Writing is safe, because this step allocated the bytes, and nothing else reads them yet.
  return {const_cast<char*>(value.content.bytes.data()), value.content.bytes.size()};
}

// Forwards to a step's link. Tells the flight recorder for which peer the running instruction
// waits. Records sends and waits for the step's timeline, if there is a tracer.
class WatchedLink final : public Link {
 public:
  // `tracer` may be null.
  WatchedLink(StepLink* link, FlightRecorder* recorder, StepTracer* tracer)
      : link_(link), recorder_(recorder), tracer_(tracer) {}

  // From now on, records each receive for the instruction that `ticket` identifies, with index `op`
  // in the plan.
  void Watch(FlightRecorder::Ticket ticket, int64_t op) {
    ticket_ = ticket;
    op_ = op;
    peer_.store(kNone, std::memory_order_relaxed);
  }
  // Returns the last peer for which the instruction waited.
  std::optional<DeviceId> peer() const {
    const DeviceId peer = peer_.load(std::memory_order_relaxed);
    return peer == kNone ? std::nullopt : std::optional(peer);
  }

  // Records that the instruction waits for a peer without a receive.
  void WaitsFor(DeviceId peer) {
    if (peer_.exchange(peer, std::memory_order_relaxed) != peer) {
      recorder_->WaitsFor(ticket_, peer);
    }
  }

  DeviceId rank() const override { return link_->rank(); }
  absl::Status Begin(int64_t op, std::string signature) override {
    return link_->Begin(op, std::move(signature));
  }
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override {
    if (tracer_ == nullptr) return link_->Send(peer, tag, std::move(message));
    const absl::Time started = tracer_->Now();
    const auto size_bytes = static_cast<int64_t>(message.bytes.size());
    const absl::Status sent = link_->Send(peer, tag, std::move(message));
    Trace(TraceSpanKind::kSend, started, size_bytes, peer);
    return sent;
  }
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override {
    WaitsFor(peer);
    if (tracer_ == nullptr) return link_->Receive(peer, tag, message_bytes, deadline);
    const absl::Time started = tracer_->Now();
    auto piece = link_->Receive(peer, tag, message_bytes, deadline);
    const auto size_bytes = piece.ok() ? static_cast<int64_t>(piece->bytes.size()) : 0;
    Trace(TraceSpanKind::kWait, started, size_bytes, peer);
    return piece;
  }
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId peer, const Tag& tag,
                                                       int64_t message_bytes) override {
    return link_->TryReceive(peer, tag, message_bytes);
  }
  void Reclaim() override { link_->Reclaim(); }

 private:
  static constexpr DeviceId kNone = -1;

  void Trace(TraceSpanKind kind, absl::Time started, int64_t size_bytes, DeviceId peer) {
    tracer_->Add({.kind = kind, .op = op_, .started = started, .bytes = size_bytes, .peer = peer});
  }

  StepLink* const link_;
  FlightRecorder* const recorder_;
  StepTracer* const tracer_;
  FlightRecorder::Ticket ticket_ = 0;
  int64_t op_ = 0;  // index of the running instruction
  std::atomic<DeviceId> peer_ = kNone;
};

class RankStep {
 public:
  RankStep(const StepRunContext& context, const RankPlan& part, StepResult* result)
      : context_(context),
        options_(*context.options),
        part_(part),
        plan_(part.plan()),
        order_(*context.order),
        rank_(context.link->rank()),
        tracer_(TracerOf(context)),
        link_(context.link, context.options->recorder, tracer_.get()),
        result_(*result) {
    op_context_.threads = options_.kernel->threads();
  }

  absl::Status Run() {
    SHARDMESH_RETURN_IF_ERROR(BindValues());
    SHARDMESH_RETURN_IF_ERROR(FetchOperands());
    for (size_t i = 0; i < plan_.instructions.size(); ++i) {
      const absl::Status done = RunRecorded(i);
      if (!done.ok()) {
        Blame(done);
        return WithContext(done, plan_.instructions[i].label);
      }
      for (const ValueIndex value : part_.instruction(i).ends) FreeValue(value);
      if (i == part_.memory().last) block_.reset();
    }
    SHARDMESH_RETURN_IF_ERROR(StageOutputs());
    SHARDMESH_RETURN_IF_ERROR(StageUpdates());
    if (tracer_ != nullptr) result_.trace = tracer_->Take(rank_);
    return absl::OkStatus();
  }

  // Returns the updates of the plan, in its order, after Run; those that were begun if it has
  // failed.
  TileUpdates TakeUpdates() { return std::move(updates_); }

 private:
  // Returns null if nobody asked for the step's timeline.
  static std::unique_ptr<StepTracer> TracerOf(const StepRunContext& context) {
    const int64_t max_spans = context.order->max_trace_spans;
    if (max_spans <= 0) return nullptr;
    return std::make_unique<StepTracer>(context.options->clock, max_spans);
  }

  absl::Status RunRecorded(size_t op) {
    SHARDMESH_FAILPOINT("step.instruction");
    const Instruction& instruction = plan_.instructions[op];
    constants_ = &part_.instruction(op);
    running_ = static_cast<int64_t>(op);
    const absl::Time started = options_.clock->Now();
    const int64_t sent_before = tracer_ == nullptr ? 0 : context_.link->sent_bytes();
    ticket_ = options_.recorder->Begin({.step = order_.sequence,
                                        .mesh_id = plan_.mesh_id,
                                        .rank = rank_,
                                        .op = running_,
                                        .what = instruction.label,
                                        .started = started},
                                       constants_->sources);
    link_.Watch(ticket_, running_);
    absl::Status done = CheckAbort();
    if (done.ok() && op == part_.memory().first) done = AllocateBlock();
    if (done.ok()) done = Allocate(instruction.output);
    if (done.ok()) {
      done = std::visit([&](const auto& kind) { return Execute(op, instruction, kind); },
                        instruction.kind);
    }
    options_.recorder->End(ticket_, done, options_.clock->Now());
    if (tracer_ != nullptr) {
      tracer_->Add(
          {.op = running_, .started = started, .bytes = context_.link->sent_bytes() - sent_before});
    }
    return done;
  }

  // After a deadline error, names in the result the worker at fault: the worker of the peer for
  // which the instruction waited.
  void Blame(const absl::Status& error) {
    const std::optional<DeviceId> peer = link_.peer();
    if (!absl::IsDeadlineExceeded(error) || !peer.has_value()) return;
    const MembershipView view = options_.links->membership();
    const MeshMembers* mesh = view.Find(plan_.mesh_id);
    if (mesh == nullptr) return;
    for (const MeshDevice& device : mesh->devices) {
      if (device.rank == *peer) result_.blamed_identity = device.identity;
    }
  }

  // Frees a value's memory, unless the memory belongs to a staged tile or to an update.
  void FreeValue(ValueIndex value) {
    const RankValue& constants = *values_[value].constants;
    if (constants.output.has_value() || constants.is_update) return;
    values_[value].content = {};
    values_[value].packed = nullptr;
    values_[value].block = nullptr;
    values_[value].replacement = nullptr;
  }

  absl::Status BindValues() {
    if (order_.operands.size() != plan_.operand_count ||
        order_.outputs.size() != plan_.outputs.size()) {
      return InvalidArgument(
          Reason::kBadField,
          StrCat("the plan has ", plan_.operand_count, " operands and ", plan_.outputs.size(),
                 " outputs, the order ", order_.operands.size(), " and ", order_.outputs.size()),
          {{fact::kField, "operands"}, {fact::kValue, order_.operands.size()}});
    }
    values_.resize(plan_.values.size());
    for (ValueIndex i = 0; i < values_.size(); ++i) values_[i].constants = &part_.value(i);
    staged_.resize(plan_.outputs.size());
    SHARDMESH_RETURN_IF_ERROR(CheckUpdates());
    return CheckOutputs();
  }

  // Checks that the operands that the plan updates are different arrays, which outlive the step.
  absl::Status CheckUpdates() const {
    std::set<std::string_view> array_ids;
    for (const StateUpdate& update : plan_.updates) {
      const StepOperand& operand = order_.operands[update.operand];
      const auto* const array_id = std::get_if<std::string>(&operand.value);
      std::string_view fault;
      if (array_id == nullptr) {
        fault = "is a literal; the plan updates it, so it must be an array";
      } else if (operand.donate) {
        fault = "is donated; the plan updates it, so the step cannot be its last use";
      } else if (!array_ids.insert(*array_id).second) {
        fault = "is an array that the plan updates as another operand too";
      }
      if (fault.empty()) continue;
      return InvalidArgument(Reason::kBadField, StrCat("operand ", update.operand, " ", fault),
                             {{fact::kField, "operands"}, {fact::kValue, update.operand}});
    }
    return absl::OkStatus();
  }

  // Checks that the array's tile is that of the value. Derives the tile only if the descriptions
  // differ, because equal descriptions have equal tiles.
  absl::Status CheckTile(size_t output) const {
    const ArrayDescriptor& array = order_.outputs[output].array;
    const ValueDescriptor& described = plan_.values[plan_.outputs[output]];
    if (array.dtype == described.dtype && array.shape == described.shape &&
        array.spec == described.spec && array.cut_points == described.cut_points &&
        array.mesh == plan_.mesh) {
      return absl::OkStatus();
    }
    const LocalValue& value = values_[plan_.outputs[output]];
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
    if (array.dtype == value.dtype() && tiling.mesh().size() == plan_.mesh.size() &&
        tiling.TileOf(rank_) == value.tile()) {
      return absl::OkStatus();
    }
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("output ", output, " (array ", array.array_id,
               ") does not lie as the plan says: its tile here would be ",
               tiling.TileOf(rank_).ToString(), ", the plan makes ", value.tile().ToString()),
        {{fact::kHave, tiling.TileOf(rank_).ToString()}, {fact::kNeed, value.tile().ToString()}});
  }

  absl::Status CheckOutputs() const {
    int64_t returned_bytes = 0;
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      SHARDMESH_RETURN_IF_ERROR(CheckTile(i));
      const ArrayDescriptor& array = order_.outputs[i].array;
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.SizeBytes());
      returned_bytes += size_bytes;
    }
    if (order_.return_literals && returned_bytes > StepExecutor::kMaxReturnedBytes) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("the results have ", returned_bytes, " bytes; at most ",
                 StepExecutor::kMaxReturnedBytes, " can be returned inline, get them as arrays"),
          {{fact::kHave, returned_bytes}, {fact::kLimit, StepExecutor::kMaxReturnedBytes}});
    }
    return absl::OkStatus();
  }

  absl::Status FetchOperands() {
    SHARDMESH_FAILPOINT("step.fetch_operands");
    for (size_t i = 0; i < order_.operands.size(); ++i) {
      if (values_[i].constants->update.has_value()) continue;
      if (absl::Status fetched = FetchOperand(order_.operands[i], values_[i]); !fetched.ok()) {
        return WithContext(fetched, StrCat("operand ", i));
      }
    }
    // The last, because an array may also be one of the operands above: these keep its elements.
    updates_.reserve(plan_.updates.size());
    for (const StateUpdate& update : plan_.updates) {
      if (absl::Status begun = BeginUpdate(update.operand); !begun.ok()) {
        return WithContext(begun, StrCat("operand ", update.operand));
      }
    }
    for (size_t i = 0; i < order_.operands.size(); ++i) {
      if (!order_.operands[i].donate) continue;
      SHARDMESH_RETURN_IF_ERROR(TakeDonated(static_cast<ValueIndex>(i)));
    }
    return absl::OkStatus();
  }

  // If the plan makes a result in the memory of a donated operand, and nobody else holds this
  // memory, takes the memory out of the store. In all other cases the result gets separate memory.
  absl::Status TakeDonated(ValueIndex operand) {
    LocalValue& value = values_[operand];
    const std::optional<ValueIndex> result = value.constants->result_over;
    if (value.array_id.empty() || !result.has_value()) return absl::OkStatus();
    // Release the bytes here first, because TakeMemory requires that nobody but the store holds
    // them.
    value.content = {};
    value.packed = nullptr;
    value.donated = options_.store->TakeMemory(value.array_id, value.tile());
    if (value.donated == nullptr) return FetchOperand(order_.operands[operand], value);
    value.content = {value.donated->bytes(), value.donated};
    values_[*result].donated = value.donated;
    return absl::OkStatus();
  }

  // Returns get(), which finds a tile in the store. While a step updates the tile, tries again: the
  // commit of a step may come here after the order of the next one. The store waits a while each
  // time.
  template <typename Get>
  std::invoke_result_t<Get&> OnceUpdated(Get get) const {
    while (true) {
      auto found = get();
      if (found.ok() || ReasonOf(found.status()) != Reason::kOverloaded) return found;
      SHARDMESH_RETURN_IF_ERROR(CheckAbort());
    }
  }

  absl::Status BeginUpdate(ValueIndex operand) {
    LocalValue& value = values_[operand];
    const auto& array_id = std::get<std::string>(order_.operands[operand].value);
    const auto begin = [&] {
      return options_.store->BeginUpdate(array_id, value.tile(), order_.sequence);
    };
    SHARDMESH_ASSIGN_OR_RETURN(StateTilePtr tile,
                               OnceUpdated([&] { return WithRoom(value.size_bytes(), begin); }));
    updates_.push_back(std::make_unique<TileUpdate>(std::move(tile)));
    TileUpdate& update = *updates_.back();
    SHARDMESH_RETURN_IF_ERROR(
        CheckStored(update.description(), value.dtype(), plan_.values[operand].shape));
    value.update = &update;
    value.block = update.block();
    const OwnedMutableBytes memory = value.block->Share(0, value.size_bytes());
    value.content = {memory.bytes, memory.owner};
    return absl::OkStatus();
  }

  static absl::Status CheckStored(const TileDescription& stored, Dtype dtype, const Shape& shape) {
    if (stored.dtype == dtype && stored.array_shape == shape) return absl::OkStatus();
    return Misfit(stored.dtype, stored.array_shape, dtype, shape);
  }

  absl::Status FetchOperand(const StepOperand& operand, LocalValue& value) {
    const Shape& whole_shape = plan_.values[static_cast<size_t>(&value - values_.data())].shape;
    if (const auto* array_id = std::get_if<std::string>(&operand.value)) {
      SHARDMESH_ASSIGN_OR_RETURN(StoredTilePtr stored, OnceUpdated([&] {
                                   return options_.store->FindHeld(*array_id, value.tile());
                                 }));
      SHARDMESH_RETURN_IF_ERROR(CheckStored(stored->description(), value.dtype(), whole_shape));
      // Nothing is packed for state, which changes under its id.
      if (!stored->is_state()) value.array_id = *array_id;
      value.packed = std::dynamic_pointer_cast<const PackedTile>(stored->form());
      if (value.packed != nullptr &&
          value.constants->packing == value.packed->weights().packing()) {
        return absl::OkStatus();
      }
      if (value.packed != nullptr) {
        SHARDMESH_ASSIGN_OR_RETURN(stored, WithRoom(value.size_bytes(), [&] {
                                     return context_.weights->TakePlain(*array_id, value.tile(),
                                                                        value.packed);
                                   }));
        value.packed = nullptr;
      }
      value.content = {stored->bytes(), stored};
      return absl::OkStatus();
    }
    const auto& literal = std::get<Literal>(operand.value);
    if (literal.dtype != value.dtype() || literal.shape != whole_shape) {
      return Misfit(literal.dtype, literal.shape, value.dtype(), whole_shape);
    }
    // A copy makes the padding of a last byte zero.
    const bool is_padded = !WholeSizeBytes(value.dtype(), value.tile().element_count()).ok();
    if (value.tile() == Tile::Whole(whole_shape) && !is_padded) {
      value.content = {literal.bytes, context_.order};
      return absl::OkStatus();
    }
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView whole,
                               TensorView::Create(literal.dtype, literal.shape, literal.bytes));
    SHARDMESH_RETURN_IF_ERROR(AllocatePooled(value, "an operand's tile"));
    return CopyTileBytes(whole, value.tile(), 0, Mutable(value));
  }

  static absl::Status Misfit(Dtype dtype, const Shape& shape, Dtype planned_dtype,
                             const Shape& planned_shape) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("it is ", DtypeName(dtype), " of shape ", ShapeToString(shape), ", the plan takes ",
               DtypeName(planned_dtype), " of shape ", ShapeToString(planned_shape)),
        {{fact::kHave, ShapeToString(shape)}, {fact::kNeed, ShapeToString(planned_shape)}});
  }

  absl::Status AllocatePooled(LocalValue& value, std::string_view what) {
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedMutableBytes memory, Pooled(value.size_bytes(), what));
    value.content = {memory.bytes, memory.owner};
    return absl::OkStatus();
  }

  // Allocates the block of the temporaries. If there is no room for it, there is none, and each
  // temporary gets a block of its own: few of them may be in use at a time.
  absl::Status AllocateBlock() {
    const int64_t block_bytes = part_.memory().block_bytes;
    const MemoryBudget& budget = options_.pool->budget();
    if (block_bytes == 0 || block_bytes > budget.limit_bytes() || FitsOnlyWithoutBlock()) {
      return absl::OkStatus();
    }
    absl::StatusOr<Buffer> memory = PooledBuffer(block_bytes, "a step's intermediate values");
    if (ReasonOf(memory.status()) == Reason::kMemoryLimit) return absl::OkStatus();
    SHARDMESH_RETURN_IF_ERROR(memory.status());
    block_ = std::make_shared<StepBlock>(*std::move(memory));
    return absl::OkStatus();
  }

  // Returns whether the free memory is too little for the block and for the outputs, but enough if
  // each temporary gets its own memory.
  bool FitsOnlyWithoutBlock() const {
    const MemoryBudget& budget = options_.pool->budget();
    const int64_t free_bytes =
        budget.limit_bytes() - budget.used_bytes() + options_.pool->idle_bytes();
    // The first instructions may have made some outputs already.
    int64_t left_bytes = free_bytes - part_.memory().block_bytes;
    for (size_t i = part_.memory().first; i < plan_.instructions.size(); ++i) {
      const LocalValue& value = values_[plan_.instructions[i].output];
      const bool is_kept = value.constants->output.has_value() ||
                           (value.constants->is_update && !IsMadeOverState(value));
      if (!is_kept || value.donated != nullptr) continue;
      left_bytes -= std::min(value.size_bytes(), std::max<int64_t>(left_bytes, 0) + 1);
    }
    return left_bytes < 0 && FitsWithoutBlock(free_bytes);
  }

  static bool IsMadeOverState(const LocalValue& value) {
    return value.constants->over_state.has_value();
  }

  bool FitsWithoutBlock(int64_t free_bytes) const {
    int64_t left_bytes = free_bytes;
    for (size_t i = part_.memory().first; i < plan_.instructions.size(); ++i) {
      const LocalValue& made = values_[plan_.instructions[i].output];
      const std::optional<BlockPlace>& place = made.constants->place;
      const std::optional<ValueIndex> over = place.has_value() ? place->over : std::nullopt;
      if (!over.has_value() && !IsMadeOverState(made) && made.donated == nullptr) {
        if (made.size_bytes() > left_bytes) return false;
        left_bytes -= made.size_bytes();
      }
      for (const ValueIndex ended : part_.instruction(i).ends) {
        const RankValue& constants = *values_[ended].constants;
        const bool is_temporary = ended >= plan_.operand_count && !constants.output.has_value() &&
                                  !constants.is_update && !constants.over_state.has_value();
        if (is_temporary && ended != over) left_bytes += values_[ended].size_bytes();
      }
    }
    return true;
  }

  // Gives a value the memory at its place in the block, or that of the input that it is made over.
  // Returns false if there is neither, or if an earlier value there, or the input, is lent to a
  // peer that has yet to read it. An empty value needs no memory: if all temporaries are empty,
  // there is no block.
  bool TakePlace(LocalValue& value) {
    if (value.size_bytes() == 0) {
      value.content = {};
      return true;
    }
    const BlockPlace& place = *value.constants->place;
    LocalValue* over = nullptr;
    if (place.over.has_value() && values_[*place.over].block != nullptr) {
      over = &values_[*place.over];
    }
    const std::shared_ptr<StepBlock> block =
        block_ == nullptr && over != nullptr ? over->block : block_;
    if (block == nullptr) return false;
    const int64_t offset_bytes = block == block_ ? place.offset_bytes : 0;
    if (over != nullptr) over->content.owner = nullptr;  // the block keeps the bytes
    const auto memory = block->Take(offset_bytes, value.size_bytes());
    if (memory.has_value()) {
      value.content = {memory->bytes, memory->owner};
      value.block = block;
    }
    if (over != nullptr) {
      over->content.owner =
          memory.has_value() ? memory->owner : block->Share(offset_bytes, value.size_bytes()).owner;
    }
    return memory.has_value();
  }

  // Gives a temporary a block of its own.
  absl::Status AllocateAlone(LocalValue& value) {
    SHARDMESH_ASSIGN_OR_RETURN(Buffer memory, PooledBuffer(value.size_bytes(), "a step's value"));
    value.block = std::make_shared<StepBlock>(std::move(memory));
    const OwnedMutableBytes part = *value.block->Take(0, value.size_bytes());
    value.content = {part.bytes, part.owner};
    return absl::OkStatus();
  }

  // Gives a temporary its memory. If peers have yet to read what was at its place, takes separate
  // memory, so that this rank does not wait for them. Waits for them only if the pool has no memory
  // left. They read it without anything more from this rank: this rank has ended all earlier ops,
  // and has sent all data of these ops.
  absl::Status AllocateTemporary(LocalValue& value) {
    constexpr absl::Duration kPoll = absl::Milliseconds(1);
    if (TakePlace(value)) return absl::OkStatus();
    link_.Reclaim();
    if (TakePlace(value)) return absl::OkStatus();
    if (block_ == nullptr) return AllocateAlone(value);
    absl::StatusOr<Buffer> separate =
        options_.pool->TryAllocate(value.size_bytes(), "a step's value");
    if (separate.ok()) {
      const auto shared = std::make_shared<Buffer>(*std::move(separate));
      value.content = {shared->bytes(), shared};
      return absl::OkStatus();
    }
    while (!TakePlace(value)) {
      SHARDMESH_RETURN_IF_ERROR(CheckAbort());
      block_->Wait(kPoll);
      link_.Reclaim();
    }
    return absl::OkStatus();
  }

  // Makes a value in the memory of state, or in memory that replaces it. Returns false if the value
  // cannot be made there, or if a peer has yet to read what is there.
  bool TakeState(LocalValue& value) {
    if (!value.constants->over_state.has_value()) return false;
    LocalValue& over = values_[*value.constants->over_state];
    if (over.block == nullptr) return false;
    over.content.owner = nullptr;  // the block keeps the bytes
    const auto memory = over.block->Take(0, value.size_bytes());
    if (memory.has_value()) {
      value.content = {memory->bytes, memory->owner};
      value.block = over.block;
      value.update = over.update;
      value.replacement = over.replacement;
    }
    over.content.owner =
        memory.has_value() ? memory->owner : over.block->Share(0, value.size_bytes()).owner;
    return memory.has_value();
  }

  // Gives its memory to a value that becomes the content of state, or that is on the way to it.
  absl::Status AllocateUpdate(LocalValue& value) {
    if (value.size_bytes() == 0 || TakeState(value)) return absl::OkStatus();
    link_.Reclaim();
    if (TakeState(value)) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(Buffer memory, PooledBuffer(value.size_bytes(), kUpdateMemory));
    value.replacement = std::make_shared<Buffer>(std::move(memory));
    value.block = std::make_shared<StepBlock>(
        OwnedMutableBytes{value.replacement->mutable_bytes(), value.replacement});
    const OwnedMutableBytes part = value.block->Share(0, value.size_bytes());
    value.content = {part.bytes, part.owner};
    return absl::OkStatus();
  }

  absl::Status Allocate(ValueIndex index) {
    LocalValue& value = values_[index];
    if (IsMadeOverState(value) ||
        (value.constants->is_update && !value.constants->output.has_value())) {
      return AllocateUpdate(value);
    }
    if (value.constants->place.has_value()) return AllocateTemporary(value);
    if (!value.constants->output.has_value()) return AllocatePooled(value, "a step's value");
    const size_t output = *value.constants->output;
    SHARDMESH_RETURN_IF_ERROR(Stage(output));
    // The bytes keep their owner, and the link gets the bytes together with the owner. The network
    // may still hold the bytes when the step has ended.
    value.content = {staged_[output]->mutable_bytes(), staged_[output]->memory()};
    return absl::OkStatus();
  }

  absl::Status Stage(size_t output) {
    const StepOutput& wanted = order_.outputs[output];
    const LocalValue& value = values_[plan_.outputs[output]];
    const auto stage = [&] {
      return options_.store->Stage({.array_id = wanted.array.array_id,
                                    .dtype = value.dtype(),
                                    .array_shape = wanted.array.shape,
                                    .tile = value.tile(),
                                    .array_descriptor = wanted.encoded,
                                    .transfer_id = StrCat(kStepTransferPrefix, order_.sequence)},
                                   /*durable=*/false, value.donated);
    };
    SHARDMESH_ASSIGN_OR_RETURN(staged_[output], WithRoom(value.size_bytes(), stage));
    return absl::OkStatus();
  }

  // Returns allocate(). If memory is short, first releases what peers have read by now, then frees
  // other memory, and each time tries again.
  template <typename Allocate>
  std::invoke_result_t<Allocate&> WithRoom(int64_t size_bytes, Allocate allocate) {
    auto allocated = allocate();
    if (ReasonOf(allocated.status()) != Reason::kMemoryLimit) return allocated;
    link_.Reclaim();
    allocated = allocate();
    if (WasRoomMade(allocated.status(), size_bytes)) allocated = allocate();
    return allocated;
  }

  // Returns whether `status` says that memory is short, and some was freed since.
  bool WasRoomMade(const absl::Status& status, int64_t size_bytes) const {
    return ReasonOf(status) == Reason::kMemoryLimit && options_.free_memory &&
           options_.free_memory(status, size_bytes);
  }

  absl::Status CheckAbort() const {
    SHARDMESH_RETURN_IF_ERROR(context_.link->Check());
    if (options_.clock->Now() >= context_.deadline) {
      return WithReason(
          absl::DeadlineExceededError(
              StrCat("the step took longer than its timeout of ", FormatRounded(order_.timeout))),
          Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(order_.timeout)}});
    }
    return absl::OkStatus();
  }

  // --- Instructions. Allocate has provided the memory of the output before Execute runs.

  // Requires an operand that is an array. The result refers to `operand`.
  static WeightCache::Weight WeightOf(const LocalValue& operand) {
    return {.array_id = operand.array_id,
            .tile = operand.tile(),
            .bytes = operand.content,
            .is_only_packed = operand.constants->packing.has_value()};
  }

  absl::Status Execute(size_t /*op*/, const Instruction& instruction, const LocalMatmul& matmul) {
    // A batch of small products pauses for other kernels after this time.
    constexpr absl::Duration kLongestWithoutPause = absl::Milliseconds(20);
    const LocalValue& lhs = values_[matmul.lhs];
    const LocalValue& rhs = values_[matmul.rhs];
    const LocalValue& out = values_[instruction.output];
    if (out.size_bytes() == 0) return absl::OkStatus();
    const MatmulSpec& spec = constants_->matmul;
    const ProductLoops& loops = constants_->loops;
    MatmulOperands operands;
    if (matmul.bias.has_value()) operands.bias = values_[*matmul.bias].content.bytes;
    if (matmul.scales.has_value()) operands.scales = values_[*matmul.scales].content.bytes;
    KernelTurns::Turn turn(context_.turns, [this] { return CheckAbort(); });
    const absl::Time started = options_.clock->Now();
    SHARDMESH_RETURN_IF_ERROR(turn.Take());
    absl::Time paused = options_.clock->Now();
    const auto pause = [&] {
      const absl::Status status = turn.PauseForOthers();
      paused = options_.clock->Now();
      return status;
    };
    PackedTilePtr packed = rhs.packed;
    if (packed == nullptr && !rhs.array_id.empty() && loops.is_one_rhs) {
      SHARDMESH_ASSIGN_OR_RETURN(packed, context_.weights->Find(WeightOf(rhs), spec, pause));
    }
    if (packed != nullptr) operands.packed = &packed->weights();
    // Returns matrix `number` of a tile.
    const auto matrix = [](auto bytes, int64_t number, int64_t size_bytes) {
      return bytes.subspan(static_cast<size_t>(number * size_bytes),
                           static_cast<size_t>(size_bytes));
    };
    int64_t products = 0;
    const absl::Status done = ForEachProduct(loops, [&](int64_t l, int64_t r, int64_t o) {
      // The kernel pauses only within a product, between its blocks.
      if (products > 0 && options_.clock->Now() - paused >= kLongestWithoutPause) {
        SHARDMESH_RETURN_IF_ERROR(pause());
      }
      operands.lhs = matrix(lhs.content.bytes, l, constants_->lhs_matrix_bytes);
      operands.rhs = matrix(rhs.content.bytes, r, constants_->rhs_matrix_bytes);
      operands.out = matrix(Mutable(out), o, constants_->out_matrix_bytes);
      ++products;
      return options_.kernel->Run(spec, operands, pause);
    });
    RecordKernel(2 * spec.m * spec.n * spec.k * products, started, turn.waited());
    return done;
  }

  absl::Status Execute(size_t /*op*/, const Instruction& instruction,
                       const LocalEpilogue& epilogue) {
    const LocalValue& in = values_[epilogue.input];
    const LocalValue& out = values_[instruction.output];
    absl::Span<const char> bias;
    if (epilogue.bias.has_value()) bias = values_[*epilogue.bias].content.bytes;
    KernelTurns::Turn turn(context_.turns, [this] { return CheckAbort(); });
    const absl::Time started = options_.clock->Now();
    SHARDMESH_RETURN_IF_ERROR(turn.Take());
    const absl::Status done =
        ApplyEpilogue(constants_->epilogue, in.content.bytes, bias, Mutable(out),
                      options_.kernel->threads(), [&turn] { return turn.PauseForOthers(); });
    RecordKernel(out.tile().element_count(), started, turn.waited());
    return done;
  }

  absl::Status Execute(size_t /*op*/, const Instruction& instruction, const LocalCompute& compute) {
    const LocalValue& out = values_[instruction.output];
    if (out.size_bytes() == 0) return absl::OkStatus();
    const std::vector<ValueIndex>& inputs = constants_->inputs;
    // Elements in another shape that are there already.
    if (std::holds_alternative<ReshapeOp>(compute.op) && IsSameMemory(values_[inputs[0]], out)) {
      return absl::OkStatus();
    }
    const absl::Span<const OpInput> bound = BindInputs();
    const OpOutput result = OutputIn(out);
    if (const auto* const rows = std::get_if<UpdateRowsOp>(&compute.op)) {
      SHARDMESH_RETURN_IF_ERROR(KeepRows(values_[rows->input], out, bound.back(), result));
    }
    return InTurn([&] { return RunTensorOp(compute.op, bound, result, op_context_); });
  }

  absl::Status Execute(size_t /*op*/, const Instruction& instruction, const FusedCompute& fused) {
    const LocalValue& out = values_[instruction.output];
    if (out.size_bytes() == 0) return absl::OkStatus();
    const absl::Span<const OpInput> bound = BindInputs();
    const OpOutput result = OutputIn(out);
    return InTurn([&] { return RunFusedOps(fused, bound, result, op_context_); });
  }

  // Returns the tiles that the running tensor op reads. They are valid until the next call.
  absl::Span<const OpInput> BindInputs() {
    const std::vector<ValueIndex>& inputs = constants_->inputs;
    if (op_inputs_.size() < inputs.size()) op_inputs_.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const LocalValue& in = values_[inputs[i]];
      op_inputs_[i] = {in.dtype(), in.shape(), in.tile(), in.content.bytes};
    }
    return absl::MakeConstSpan(op_inputs_).first(inputs.size());
  }

  static OpOutput OutputIn(const LocalValue& out) {
    return {out.dtype(), out.shape(), out.tile(), Mutable(out)};
  }

  // Calls run() once the step has its turn on the kernel's threads. Sets the abort check of
  // op_context_ for that time, and records the kernel.
  template <typename Run>
  absl::Status InTurn(Run run) {
    KernelTurns::Turn turn(context_.turns, [this] { return CheckAbort(); });
    const absl::Time started = options_.clock->Now();
    SHARDMESH_RETURN_IF_ERROR(turn.Take());
    op_context_.abort_check = [&turn] { return turn.PauseForOthers(); };
    const absl::Status done = run();
    op_context_.abort_check = nullptr;
    RecordKernel(constants_->flops, started, turn.waited());
    return done;
  }

  static bool IsSameMemory(const LocalValue& a, const LocalValue& b) {
    return a.content.bytes.data() == b.content.bytes.data() &&
           a.content.bytes.size() == b.content.bytes.size();
  }

  // Keeps the rows of state that the op is about to overwrite.
  absl::Status KeepRows(const LocalValue& in, const LocalValue& out, const OpInput& positions,
                        const OpOutput& result) {
    if (out.update == nullptr || !out.update->needs_undo() || !IsSameMemory(in, out)) {
      return absl::OkStatus();
    }
    std::vector<ByteRegion> regions = RegionsOfUpdate(result, positions);
    if (regions.empty()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(Buffer copy,
                               PooledBuffer(TotalBytes(regions), "the old rows of an update"));
    out.update->undo_log().Keep(result.bytes, std::move(regions), std::move(copy));
    return absl::OkStatus();
  }

  absl::Status Execute(size_t /*op*/, const Instruction& instruction, const LocalSlice& slice) {
    const LocalValue& in = values_[slice.input];
    const LocalValue& out = values_[instruction.output];
    // A copy that is made over its input is there already.
    if (in.content.bytes.data() == out.content.bytes.data()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView from,
                               TensorView::Create(in.dtype(), in.shape(), in.content.bytes));
    SHARDMESH_ASSIGN_OR_RETURN(const MutableTensorView to,
                               MutableTensorView::Create(out.dtype(), out.shape(), Mutable(out)));
    return CopyTile(from, in.tile(), to, out.tile(), out.tile());
  }

  absl::Status Execute(size_t op, const Instruction& instruction,
                       const GroupCollective& collective) {
    const LocalValue& in = values_[collective.input];
    const LocalValue& out = values_[instruction.output];
    return Exchanged(
        op, [&](const CollectiveCall& call) { return Exchange(call, collective, in, out); },
        [&](const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
          ReportCollective(collective, bytes, elapsed);
        });
  }

  absl::Status Execute(size_t op, const Instruction& instruction, const GatherMatmul& fused) {
    const OwnedBytes& mine = values_[fused.gather.input].content;
    const absl::Span<char> out = Mutable(values_[instruction.output]);
    const LocalValue& lhs = values_[fused.matmul.lhs];
    const LocalValue& rhs = values_[fused.matmul.rhs];
    return ExchangedBeside(op, fused.matmul, fused.gather, fused.gathers_rhs ? &lhs : nullptr,
                           fused.gathers_rhs ? nullptr : &rhs,
                           [&](const CollectiveCall& call, BlockProducts& products) {
                             return GatherAndMultiply(call, products, *constants_->split, mine,
                                                      out);
                           });
  }

  absl::Status Execute(size_t op, const Instruction& instruction, const MatmulScatter& fused) {
    const absl::Span<char> out = Mutable(values_[instruction.output]);
    return ExchangedBeside(
        op, fused.matmul, fused.scatter, &values_[fused.matmul.lhs], &values_[fused.matmul.rhs],
        [&](const CollectiveCall& call, BlockProducts& products) {
          return MultiplyAndScatter(call, constants_->combiner, products, *constants_->split, out);
        });
  }

  // Runs a fused instruction: begins its collective, and calls run(call, products). `lhs` and `rhs`
  // are the operands; the one that is gathered is null. The kernel's time is not time of the
  // collective.
  template <typename Run>
  absl::Status ExchangedBeside(size_t op, const LocalMatmul& matmul,
                               const GroupCollective& collective, const LocalValue* lhs,
                               const LocalValue* rhs, Run run) {
    const bool is_one_rhs = constants_->loops.is_one_rhs;
    std::optional<WeightCache::Weight> weight;
    if (rhs != nullptr && is_one_rhs && !rhs->array_id.empty()) weight.emplace(WeightOf(*rhs));
    BlockProducts products({.kernel = options_.kernel,
                            .turns = context_.turns,
                            .weights = context_.weights,
                            .clock = options_.clock,
                            .abort_check = [this] { return CheckAbort(); },
                            .multiplied = TraceProducts()},
                           {.whole = constants_->matmul,
                            .lhs = lhs != nullptr ? lhs->content.bytes : absl::Span<const char>(),
                            .rhs = rhs != nullptr ? rhs->content : OwnedBytes(),
                            .is_one_rhs = is_one_rhs,
                            .bias = matmul.bias.has_value() ? values_[*matmul.bias].content.bytes
                                                            : absl::Span<const char>(),
                            .packed = rhs != nullptr ? rhs->packed : nullptr,
                            .weight = weight});
    const absl::Status done = Exchanged(
        op, [&](const CollectiveCall& call) { return run(call, products); },
        [&](const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
          ReportCollective(collective, bytes, elapsed - products.elapsed());
        });
    result_.collective_time -= products.elapsed();
    RecordKernelTime(products.flops(), products.elapsed());
    return done;
  }

  // Returns BlockProducts::Parts::multiplied, which is null without a tracer.
  BlockProducts::Multiplied TraceProducts() {
    if (tracer_ == nullptr) return nullptr;
    return [this](int64_t flops, absl::Duration waited, absl::Duration elapsed) {
      tracer_->AddKernel(running_, flops, waited, elapsed);
    };
  }

  void ReportCollective(const GroupCollective& collective,
                        const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
    if (!options_.observer.collective) return;
    options_.observer.collective(collective.kind, collective.algorithm, bytes, elapsed);
  }

  absl::Status Execute(size_t op, const Instruction& instruction, const MoveRegions& move) {
    const LocalValue& in = values_[move.input];
    const LocalValue& out = values_[instruction.output];
    const int64_t ranks = plan_.mesh.size();
    return Exchanged(
        op,
        [&](const CollectiveCall& call) {
          return RunRegionMove(call, {.plan = &*constants_->move,
                                      .dtype = in.dtype(),
                                      .from = in.content,
                                      .to = Mutable(out),
                                      .piece_bytes = MovePieceBytes(ranks),
                                      .window_bytes = MoveWindowBytes(ranks)});
        },
        [&](const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
          if (options_.observer.move) options_.observer.move(bytes, elapsed);
        });
  }

  // Begins an op with other ranks, and calls run(call). Counts time and bytes of the op, and passes
  // them to report(bytes, elapsed).
  template <typename Run, typename Report>
  absl::Status Exchanged(size_t op, Run run, Report report) {
    const absl::Time started = options_.clock->Now();
    const int64_t sent_before = context_.link->sent_bytes();
    const CollectiveCall call{
        .link = &link_,
        .group = &*constants_->group,
        .step = order_.sequence,
        .op = static_cast<int64_t>(op),
        .deadline = WallTime(*options_.clock, context_.deadline),
        .received =
            [&](DeviceId peer) {
              options_.recorder->DataCame(ticket_, peer, options_.clock->Now());
            },
        .piece_received = [this](int64_t bytes) { options_.recorder->Received(ticket_, bytes); },
        .scratch = [this](int64_t size_bytes) { return Pooled(size_bytes, "data to be sent"); },
        .check = [this] { return CheckAbort(); },
        .waits_for = [this](DeviceId peer) { link_.WaitsFor(peer); },
        .copied = &copied_};
    copied_ = {};
    absl::Status done = link_.Begin(static_cast<int64_t>(op), constants_->signature);
    if (done.ok()) {
      done = run(call);
    }
    const absl::Duration elapsed = options_.clock->Now() - started;
    result_.collective_time += elapsed;
    result_.sent_bytes = context_.link->sent_bytes();
    report(StepObserver::CollectiveBytes{.sent = result_.sent_bytes - sent_before,
                                         .copied_to_send = copied_.to_send,
                                         .copied_received = copied_.received},
           elapsed);
    return done;
  }

  absl::Status Exchange(const CollectiveCall& call, const GroupCollective& collective,
                        const LocalValue& in, const LocalValue& out) {
    const CollectiveChoice choice = {.algorithm = collective.algorithm, .order = collective.order};
    const Combiner& combiner = constants_->combiner;
    const absl::Span<const int64_t> sizes_bytes = constants_->receive_bytes;
    const bool is_root = call.group->place() == collective.root;
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
        return AllReduce(call, choice, combiner, in.content, {Mutable(out), out.content.owner});
      case CollectiveKind::kReduceScatter: {
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OwnedBytes> parts, PartsToSend(in));
        return ReduceScatter(call, choice, combiner, parts, Mutable(out));
      }
      case CollectiveKind::kReduce:
        if (!is_root) FillWithZeros(out);
        return Reduce(call, choice, combiner, collective.root, in.content, Mutable(out));
      case CollectiveKind::kAllGather:
        return Joined(call, out, [&](PlaceFn place_fn) {
          return AllGather(call, choice, in.content, sizes_bytes, place_fn);
        });
      case CollectiveKind::kGather:
        if (!is_root) FillWithZeros(out);
        return Joined(call, out, [&](PlaceFn place_fn) {
          return Gather(call, choice, collective.root, in.content, sizes_bytes, place_fn);
        });
      case CollectiveKind::kAllToAll: {
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OwnedBytes> parts, PartsToSend(in));
        return Joined(call, out, [&](PlaceFn place_fn) {
          return AllToAll(call, choice, parts, sizes_bytes, place_fn);
        });
      }
      case CollectiveKind::kBroadcast:
        return Broadcast(call, choice, collective.root, in.content,
                         {Mutable(out), out.content.owner});
      case CollectiveKind::kScatter: {
        // Only the root has parts to send.
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OwnedBytes> parts, PartsToSend(in));
        return Scatter(call, choice, collective.root, parts, Mutable(out));
      }
      case CollectiveKind::kPermute:
        return Permute(call, choice, constants_->targets, in.content, Mutable(out));
      case CollectiveKind::kBarrier:
        SHARDMESH_RETURN_IF_ERROR(Barrier(call, choice));
        CopyUnlessThere(in.content.bytes, Mutable(out));
        return absl::OkStatus();
    }
    return absl::InternalError("a collective of no kind");
  }

  static void FillWithZeros(const LocalValue& value) {
    if (value.size_bytes() > 0) std::memset(Mutable(value).data(), 0, Mutable(value).size());
  }

  // Runs a collective that joins the values of all ranks along a dimension; each value becomes a
  // part of `out`. Calls run(place_fn).
  template <typename Run>
  absl::Status Joined(const CollectiveCall& call, const LocalValue& out, Run run) {
    SHARDMESH_ASSIGN_OR_RETURN(const MutableTensorView joined,
                               MutableTensorView::Create(out.dtype(), out.shape(), Mutable(out)));
    const std::vector<PlacePart>& parts = constants_->receives;
    absl::Status pasted;
    SHARDMESH_RETURN_IF_ERROR(
        run([&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
          pasted.Update(
              PasteTileBytes(bytes, parts[static_cast<size_t>(place)].tile, offset_bytes, joined));
          if (place != call.group->place()) {
            call.copied->received += static_cast<int64_t>(bytes.size());
          }
        }));
    return pasted;
  }

  // Splits a value for the places of the group. Returns the part for each place, each in contiguous
  // memory.
  absl::StatusOr<std::vector<OwnedBytes>> PartsToSend(const LocalValue& value) {
    std::vector<OwnedBytes> parts;
    parts.reserve(constants_->sends.size());
    for (const PlacePart& part : constants_->sends) {
      SHARDMESH_ASSIGN_OR_RETURN(parts.emplace_back(), Contiguous(value, part));
    }
    return parts;
  }

  absl::StatusOr<Buffer> PooledBuffer(int64_t size_bytes, std::string_view what) {
    return WithRoom(size_bytes, [&] { return options_.pool->Allocate(size_bytes, what); });
  }

  // Allocates memory from the pool and returns it with its owner.
  absl::StatusOr<OwnedMutableBytes> Pooled(int64_t size_bytes, std::string_view what) {
    SHARDMESH_ASSIGN_OR_RETURN(Buffer buffer, PooledBuffer(size_bytes, what));
    auto shared = std::make_shared<Buffer>(std::move(buffer));
    return OwnedMutableBytes{shared->mutable_bytes(), shared};
  }

  // Returns a part of a value in contiguous memory: in place, or a copy if the part is not
  // contiguous in the value.
  absl::StatusOr<OwnedBytes> Contiguous(const LocalValue& value, const PlacePart& part) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const TensorView view,
        TensorView::Create(value.dtype(), value.shape(), value.content.bytes));
    SHARDMESH_ASSIGN_OR_RETURN(const auto bytes, ContiguousTileBytes(view, part.tile));
    if (bytes.has_value()) return OwnedBytes{*bytes, value.content.owner};
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedMutableBytes copy,
                               Pooled(part.size_bytes, "a part to be sent"));
    SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(view, part.tile, 0, copy.bytes));
    copied_.to_send += part.size_bytes;
    return OwnedBytes{copy.bytes, copy.owner};
  }

  // Records a kernel that began to wait for its turn at `started`, waited for its turns for
  // `waited`, and ends now.
  void RecordKernel(int64_t flops, absl::Time started, absl::Duration waited) {
    const absl::Duration elapsed = options_.clock->Now() - started - waited;
    if (tracer_ != nullptr) tracer_->AddKernel(running_, flops, waited, elapsed);
    result_.queue_time += waited;
    RecordKernelTime(flops, elapsed);
  }

  void RecordKernelTime(int64_t flops, absl::Duration elapsed) {
    result_.kernel_time += elapsed;
    if (options_.observer.kernel) options_.observer.kernel(flops, elapsed);
  }

  absl::Status StageOutputs() {
    SHARDMESH_FAILPOINT("step.stage_outputs");
    SHARDMESH_RETURN_IF_ERROR(CheckAbort());
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const LocalValue& value = values_[plan_.outputs[i]];
      const ArrayDescriptor& array = order_.outputs[i].array;
      if (staged_[i] == nullptr) {
        SHARDMESH_RETURN_IF_ERROR(Stage(i));
        const absl::Span<char> bytes = staged_[i]->mutable_bytes();
        if (!bytes.empty()) std::memcpy(bytes.data(), value.content.bytes.data(), bytes.size());
      }
      SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr stored, staged_[i]->Finish(std::nullopt));
      StepResult::Output& output = result_.outputs.emplace_back();
      output.array_id = array.array_id;
      output.crc32c = stored->crc32c();
      output.size_bytes = value.size_bytes();
      if (!order_.return_literals) continue;
      SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
      if (tiling.ReplicaIdOf(rank_) == 0) {
        output.data.assign(stored->bytes().data(), stored->bytes().size());
      }
    }
    return absl::OkStatus();
  }

  // Passes on the new elements of state that were not made in its memory.
  absl::Status StageUpdates() {
    SHARDMESH_FAILPOINT("step.stage_updates");
    for (size_t i = 0; i < plan_.updates.size(); ++i) {
      const LocalValue& value = values_[plan_.updates[i].value];
      if (value.update == updates_[i].get() || value.size_bytes() == 0) continue;
      std::shared_ptr<Buffer> memory = value.replacement;
      if (memory == nullptr) {  // the value is an output, too
        SHARDMESH_ASSIGN_OR_RETURN(Buffer copy, PooledBuffer(value.size_bytes(), kUpdateMemory));
        std::memcpy(copy.data(), value.content.bytes.data(), value.content.bytes.size());
        memory = std::make_shared<Buffer>(std::move(copy));
      }
      updates_[i]->Replace(std::move(memory));
    }
    for (const std::unique_ptr<TileUpdate>& update : updates_) update->AwaitCommit();
    return absl::OkStatus();
  }

  static constexpr std::string_view kUpdateMemory = "the new elements of an updated array";

  const StepRunContext& context_;
  const StepExecutor::Options& options_;
  const RankPlan& part_;
  const Plan& plan_;  // part_.plan()
  const StepOrder& order_;
  const DeviceId rank_;
  const std::unique_ptr<StepTracer> tracer_;  // null unless the step's timeline is wanted
  WatchedLink link_;
  StepResult& result_;
  CopiedBytes copied_;                 // bytes that the running collective has copied so far
  FlightRecorder::Ticket ticket_ = 0;  // of the running instruction
  int64_t running_ = 0;                // its index in the plan
  const RankInstruction* constants_ = nullptr;  // of the running instruction
  std::shared_ptr<StepBlock> block_;            // while temporaries use it; may be null
  TileUpdates updates_;                         // by index of the plan's update
  std::vector<LocalValue> values_;
  std::vector<std::unique_ptr<StagedTile>> staged_;  // by index of the output; null until staged
  OpContext op_context_;
  std::vector<OpInput> op_inputs_;  // of the running tensor op; kept for its memory
};

}  // namespace

absl::Status RunStep(const StepRunContext& context, StepResult* result, TileUpdates* updates) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const RankPlan> part,
                             context.plan->PartOf(context.link->rank()));
  RankStep step(context, *part, result);
  absl::Status run = step.Run();
  *updates = step.TakeUpdates();
  return run;
}

}  // namespace shardmesh::worker
