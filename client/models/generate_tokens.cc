// Runs the graphs of a decoder: one step for the prompts, then one for each further token.
#include "client/models/generate_tokens.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/held_arrays.h"
#include "client/models/llama_model.h"
#include "client/models/time_limit.h"
#include "client/models/token_batch.h"
#include "client/types/graph_bindings.h"
#include "client/types/zero_tensor.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/literal.h"

namespace shardmesh::client {
namespace {

constexpr int64_t kSmallestCapacity = 64;
// So many steps are under way at a time: the workers go on to the next one without the client.
constexpr int64_t kStepsAhead = 8;
// After so many steps, the results of these steps are released.
constexpr size_t kMaxHeldResults = 64;

// One run of GenerateTokens. Releases its arrays when it ends.
class Decoder {
 public:
  Decoder(MeshClient* client, const LoadedModel& model, const LlamaConfig& config,
          const GenerateOptions& generate_options, const CallOptions& options)
      : client_(client),
        model_(model),
        config_(config),
        generate_options_(generate_options),
        options_(options),
        limit_(options) {}
  ~Decoder() {
    for (const auto& [number, step] : early_) Hold(step);
    if (held_.empty()) return;
    // A run that was cancelled, or whose time is over, releases its arrays, too.
    CallOptions options = options_;
    options.cancellation = nullptr;
    options.timeout = std::nullopt;
    // The session would release them at its end, too: an error here changes no result.
    client_->arrays().ReleaseArrays(held_, options).IgnoreError();
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  absl::StatusOr<Generation> Run(absl::Span<const std::vector<int32_t>> prompts) {
    const int64_t longest = LongestOf(prompts);
    batch_.sequences = static_cast<int64_t>(prompts.size());
    batch_.capacity = RoundUpLength(longest + generate_options_.max_new_tokens, kSmallestCapacity);
    batch_.types = model_.types;
    batch_.gives_logits = generate_options_.gives_logits;
    result_.tokens.resize(prompts.size());
    ended_.resize(prompts.size());
    SHARDMESH_ASSIGN_OR_RETURN(const HeldArrays weights, HoldModel(client_, model_, limit_.Next()));
    SHARDMESH_RETURN_IF_ERROR(PutState());
    SHARDMESH_RETURN_IF_ERROR(Prefill(prompts, RoundUpLength(longest, kSmallestLength)));
    if (!IsOver()) SHARDMESH_RETURN_IF_ERROR(Decode());
    return std::move(result_);
  }

 private:
  // Puts the state, all zeros.
  absl::Status PutState() {
    const std::vector<LlamaState> state = LlamaStateOf(config_, batch_, model_.axis);
    std::vector<PutTensor> tensors;
    for (const LlamaState& array : state) {
      tensors.push_back(PutTensor{.name = {},
                                  .view = std::shared_ptr<const TileProducer>(
                                      std::make_shared<ZeroTensor>(array.dtype, array.shape)),
                                  .spec = array.spec,
                                  .is_zeros = true});
    }
    PutOptions put_options;
    put_options.mesh = model_.mesh_id;
    put_options.reuse = false;
    const absl::StatusOr<PutResult> made =
        client_->arrays().PutTensors(tensors, put_options, limit_.Next());
    if (!made.ok()) {
      return WithContext(made.status(),
                         StrCat("making the caches of keys and values, of ", batch_.sequences,
                                " sequences with ", batch_.capacity, " tokens each"));
    }
    const PutResult& put = *made;
    for (size_t i = 0; i < state.size(); ++i) {
      const std::string& array_id = put.arrays[i].descriptor.array_id;
      held_.push_back(array_id);
      state_.emplace(state[i].name, ArraySelector::ById(array_id));
    }
    state_count_ = held_.size();
    return absl::OkStatus();
  }

  GraphBindings Bindings() const {
    GraphBindings bindings{.operands = model_.weights, .return_literals = true};
    bindings.operands.insert(state_.begin(), state_.end());
    bindings.mesh_id = model_.mesh_id;
    return bindings;
  }

  absl::Status Prefill(absl::Span<const std::vector<int32_t>> prompts, int64_t length) {
    SHARDMESH_ASSIGN_OR_RETURN(const Graph graph, LlamaPrefill(config_, batch_, length));
    const TokenBatch tokens = PadTokens(prompts, length);
    GraphBindings bindings = Bindings();
    bindings.operands.emplace("ids", Int32Literal(batch_.sequences, length, tokens.ids));
    bindings.operands.emplace("id_positions",
                              Int32Literal(batch_.sequences, length, tokens.positions));
    bindings.operands.emplace("ends", Int32Literal(batch_.sequences, 1, tokens.ends));
    SHARDMESH_ASSIGN_OR_RETURN(const ExecuteCall call, BindGraph(graph, bindings));
    SHARDMESH_RETURN_IF_ERROR(Before(graph, call));
    SHARDMESH_ASSIGN_OR_RETURN(const StepResult step,
                               client_->compute().Execute(call, StepOptions(limit_.Next())));
    result_.prefill = step.timings;
    return Take(graph, step);
  }

  absl::Status Decode() {
    SHARDMESH_ASSIGN_OR_RETURN(const Graph graph, LlamaDecode(config_, batch_));
    SHARDMESH_ASSIGN_OR_RETURN(ExecuteCall call, BindGraph(graph, Bindings()));
    SHARDMESH_ASSIGN_OR_RETURN(
        const CompiledProgram compiled,
        client_->compute().Compile(graph.program, call.operands, model_.mesh_id,
                                   StepOptions(limit_.Next())));
    call.work = compiled.plan_hash;
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<StepStream> stream,
                               client_->compute().OpenStream(false, limit_.Next()));
    const auto start = std::chrono::steady_clock::now();
    const int64_t steps = generate_options_.max_new_tokens - 1;
    const int64_t ahead = generate_options_.observer == nullptr ? kStepsAhead : 1;
    int64_t sent = 0;
    for (int64_t number = 1; number <= steps && !IsOver(); ++number) {
      for (; sent < std::min(steps, number - 1 + ahead); ++sent) {
        SHARDMESH_RETURN_IF_ERROR(Before(graph, call));
        if (!stream->Send(call).ok()) break;  // the stream says why when it is read
        call.work = std::string();
        if (sent + 1 == steps) stream->EndSends();
      }
      SHARDMESH_ASSIGN_OR_RETURN(const StepResult step, Await(*stream, number));
      ++result_.decode_steps;
      result_.decode = step.timings;
      SHARDMESH_RETURN_IF_ERROR(Take(graph, step));
    }
    result_.decode_time = absl::FromChrono(std::chrono::steady_clock::now() - start);
    return absl::OkStatus();
  }

  // Waits for the step with this number. Keeps those that end before it.
  absl::StatusOr<StepResult> Await(StepStream& stream, int64_t number) {
    for (;;) {
      if (const auto found = early_.find(number); found != early_.end()) {
        StepResult step = std::move(found->second);
        early_.erase(found);
        return step;
      }
      SHARDMESH_ASSIGN_OR_RETURN(StreamedStep step, stream.Next());
      SHARDMESH_RETURN_IF_ERROR(step.result.status());
      early_.emplace(step.number, *std::move(step.result));
    }
  }

  absl::Status Before(const Graph& graph, const ExecuteCall& call) const {
    StepObserver* const observer = generate_options_.observer;
    return observer == nullptr
               ? absl::OkStatus()
               : observer->BeforeStep(graph.program, call.operands, StepOptions(limit_.Next()));
  }
  absl::Status After(const StepResult& step) const {
    StepObserver* const observer = generate_options_.observer;
    return observer == nullptr ? absl::OkStatus()
                               : observer->AfterStep(step, StepOptions(limit_.Next()));
  }

  void Hold(const StepResult& step) {
    for (const StepOutput& output : step.outputs) {
      held_.push_back(output.array.descriptor.array_id);
    }
  }

  // Takes the tokens of a step.
  absl::Status Take(const Graph& graph, const StepResult& step) {
    Hold(step);
    SHARDMESH_RETURN_IF_ERROR(After(step));
    SHARDMESH_ASSIGN_OR_RETURN(const StepOutput* const next, FindOutput(graph, step, "next"));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Int32sOf(*next));
    if (tokens.size() != result_.tokens.size()) {
      return absl::InternalError(StrCat("a step gave ", tokens.size(), " tokens for ",
                                        result_.tokens.size(), " sequences"));
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (ended_[i]) continue;
      result_.tokens[i].push_back(tokens[i]);
      const std::vector<int64_t>& stops = config_.stop_tokens;
      ended_[i] = std::find(stops.begin(), stops.end(), tokens[i]) != stops.end();
    }
    ++steps_;
    if (batch_.gives_logits) {
      SHARDMESH_ASSIGN_OR_RETURN(const StepOutput* const logits, FindOutput(graph, step, "logits"));
      SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::vector<float>> rows, RowsOf(*logits));
      result_.logits.push_back(std::move(rows));
    }
    if (generate_options_.on_tokens != nullptr) generate_options_.on_tokens(tokens);
    return held_.size() < state_count_ + kMaxHeldResults ? absl::OkStatus() : ReleaseResults();
  }

  // Releases the results of steps. The state stays.
  absl::Status ReleaseResults() {
    const absl::Span<const std::string> results = absl::MakeConstSpan(held_).subspan(state_count_);
    SHARDMESH_RETURN_IF_ERROR(client_->arrays().ReleaseArrays(results, limit_.Next()).status());
    held_.resize(state_count_);
    return absl::OkStatus();
  }

  bool IsOver() const {
    return steps_ == generate_options_.max_new_tokens ||
           std::find(ended_.begin(), ended_.end(), false) == ended_.end();
  }

  MeshClient* const client_;
  const LoadedModel& model_;
  const LlamaConfig& config_;
  const GenerateOptions& generate_options_;
  const CallOptions& options_;
  const TimeLimit limit_;
  LlamaBatch batch_;
  std::map<std::string, Operand, std::less<>> state_;
  std::vector<std::string> held_;  // the ids of the state's arrays, then those of results
  size_t state_count_ = 0;
  std::map<int64_t, StepResult> early_;  // steps that ended before one with a lower number
  std::vector<bool> ended_;              // of each sequence: it has got a stop token
  int64_t steps_ = 0;
  Generation result_;
};

// Checks that the prompts, and the logits of a step, fit into literals.
absl::Status CheckLiterals(const LlamaConfig& config,
                           absl::Span<const std::vector<int32_t>> prompts, bool gives_logits) {
  const auto count = static_cast<int64_t>(prompts.size());
  const auto element_bytes = static_cast<int64_t>(sizeof(int32_t));
  const int64_t length = RoundUpLength(LongestOf(prompts), kSmallestLength);
  if (const int64_t bytes = count * length * element_bytes; bytes > kMaxLiteralBytes) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat(count, " prompts, padded to ", length, " tokens, take ", bytes,
               " bytes; a step takes at most ", kMaxLiteralBytes, ": give fewer or shorter ones"),
        {{fact::kField, "prompts"}, {fact::kHave, bytes}, {fact::kLimit, kMaxLiteralBytes}});
  }
  // A step also returns the token of each sequence.
  const int64_t row_bytes = (config.vocabulary_size + 1) * element_bytes;
  if (const int64_t bytes = count * row_bytes; gives_logits && bytes > kMaxLiteralBytes) {
    const int64_t most = kMaxLiteralBytes / row_bytes;
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a step would return ", bytes, " bytes, logits of ", config.vocabulary_size,
               " tokens for each of ", count, " prompts; it returns at most ", kMaxLiteralBytes,
               ": ",
               most > 0 ? StrCat("give at most ", most, " prompts, or ask for no logits")
                        : std::string("ask for no logits")),
        {{fact::kField, "prompts"}, {fact::kHave, bytes}, {fact::kLimit, kMaxLiteralBytes}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrompts(const LoadedModel& model, absl::Span<const std::vector<int32_t>> prompts,
                          const GenerateOptions& generate_options) {
  SHARDMESH_ASSIGN_OR_RETURN(const LlamaConfig config, LlamaConfigOf(model));
  if (generate_options.max_new_tokens < 1) {
    return InvalidArgument(
        Reason::kBadField,
        StrCat("max_new_tokens is ", generate_options.max_new_tokens, "; it must be at least 1"),
        {{fact::kField, "max_new_tokens"}});
  }
  const auto count = static_cast<int64_t>(prompts.size());
  if (count < 1 || count > kMaxSequences) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a batch has ", count, " prompts; it must have 1 to ", kMaxSequences),
        {{fact::kField, "prompts"}, {fact::kHave, count}, {fact::kLimit, kMaxSequences}});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckTokens(prompts, config.vocabulary_size, config.max_positions,
                                        generate_options.max_new_tokens));
  return CheckLiterals(config, prompts, generate_options.gives_logits);
}

absl::StatusOr<Generation> GenerateTokens(MeshClient* client, const LoadedModel& model,
                                          absl::Span<const std::vector<int32_t>> prompts,
                                          const GenerateOptions& generate_options,
                                          const CallOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(CheckPrompts(model, prompts, generate_options));
  SHARDMESH_ASSIGN_OR_RETURN(const LlamaConfig config, LlamaConfigOf(model));
  return Decoder(client, model, config, generate_options, options).Run(prompts);
}

}  // namespace shardmesh::client
