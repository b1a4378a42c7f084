// Measures how many specs one thread resolves per second: by a profile directly, and by the
// coordinator's service. The service also reads the bytes of each request and writes the bytes of
// its answer.
#include <benchmark/benchmark.h>
#include <google/protobuf/arena.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "process/clock.h"
#include "rpc/codec/spec_codec.h"
#include "server/resolve/resolve_answers.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "sharding/correction.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/mesh.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_set.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"

namespace shardmesh {
namespace {

// The shape of an activation of attention: batch, query length, heads, head dimension.
const std::vector<int64_t> kShape = {32, 128, 16, 64};

LogicalQuestion AttentionQuestion() {
  LogicalQuestion question;
  question.dynamic_axes = &(*FindPreset("AttnQSharding"))->dynamic_axes;
  question.shape = kShape;
  return question;
}

void BM_ResolveSpec(benchmark::State& state) {
  const PartitionAxis profile;
  const LogicalQuestion question = AttentionQuestion();
  for (auto _ : state) {
    absl::StatusOr<PartitionSpec> spec = ResolveSpec(profile, question);
    benchmark::DoNotOptimize(spec);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ResolveSpec);

// Resolves a spec and corrects the spec for a mesh that lacks one of its axes.
void BM_ResolveAndCorrect(benchmark::State& state) {
  const PartitionAxis profile;
  const LogicalQuestion question = AttentionQuestion();
  const Mesh mesh = *Mesh::Parse("dp=2,fsdp=4,tp=4");
  for (auto _ : state) {
    absl::StatusOr<LogicalSharding> sharding = ApplyLogicalSharding(profile, question, mesh);
    benchmark::DoNotOptimize(sharding);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ResolveAndCorrect);

// A definition store that has the mesh `default`.
class Catalog {
 public:
  Catalog()
      : store_(server::CreateMemoryStore({.history = server::DefinitionHistory()})),
        registry_(
            *server::ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {})),
        definitions_(*server::DefinitionStore::Open(store_.get(), &clock_, &registry_->requests(),
                                                    kDefaultMinSize)) {
    v1::EntryValue mesh;
    rpc::Encode(MeshDefinition{.mesh = *Mesh::Parse("fsdp=2,tp=2"), .workers = {}},
                mesh.mutable_mesh());
    absl::Notification defined;
    definitions_->Create({.request_id = "", .name = "default"}, mesh.SerializeAsString(),
                         [&](const auto&) { defined.Notify(); });
    defined.WaitForNotification();
  }
  const server::Definitions& state() const { return definitions_->state(); }

 private:
  RealClock clock_;
  std::unique_ptr<server::Store> store_;
  std::unique_ptr<server::ArrayRegistry> registry_;
  std::unique_ptr<server::DefinitionStore> definitions_;
};

template <typename Request, typename Response>
void AnswerBytes(benchmark::State& state, const Request& question) {
  const Catalog catalog;
  const std::string bytes = question.SerializeAsString();
  for (auto _ : state) {
    google::protobuf::Arena arena;
    auto* const request = google::protobuf::Arena::CreateMessage<Request>(&arena);
    auto* const response = google::protobuf::Arena::CreateMessage<Response>(&arena);
    server::CorrectionTally corrections;
    if (!request->ParseFromString(bytes) ||
        !server::Answer({catalog.state(), corrections}, *request, response).ok()) {
      state.SkipWithError("no answer");
      break;
    }
    std::string answer = response->SerializeAsString();
    benchmark::DoNotOptimize(answer);
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_AnswerResolveSpec(benchmark::State& state) {
  v1::ResolveSpecRequest question;
  for (const char* axis : {"__BATCH__", "__LENGTH__", "__EMBED__"}) {
    question.add_axes()->set_name(axis);
  }
  for (const int64_t size : {32, 128, 384}) question.mutable_shape()->add_sizes(size);
  question.mutable_mesh()->set_name("default");
  AnswerBytes<v1::ResolveSpecRequest, v1::ResolveSpecResponse>(state, question);
}
BENCHMARK(BM_AnswerResolveSpec);

void BM_AnswerResolveEffectiveSpec(benchmark::State& state) {
  v1::ResolveEffectiveSpecRequest question;
  for (const char* axis : {"__BATCH__", "__LENGTH__", "__EMBED__"}) question.add_axes(axis);
  for (const int64_t size : {32, 128, 384}) question.add_shape(size);
  question.set_mesh("default");
  AnswerBytes<v1::ResolveEffectiveSpecRequest, v1::ResolveEffectiveSpecResponse>(state, question);
}
BENCHMARK(BM_AnswerResolveEffectiveSpec);

}  // namespace
}  // namespace shardmesh

BENCHMARK_MAIN();
