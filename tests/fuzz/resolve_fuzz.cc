// Fuzzes the pure questions as they arrive: each is answered, or refused for a reason, within
// bounds.
//
// The first byte picks the call, the others are its request; for a tree they are its tensors.
#include <array>
#include <string>
#include <string_view>

#include "rpc/codec/tree_decoder.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_resolver.h"
#include "server/state/definitions.h"
#include "sharding/mesh.h"
#include "status/reason.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

// A refusal says why: what a program can read, and what a person can.
void CheckRefusal(const absl::Status& status) {
  Require(status.ok() || (ReasonOf(status) != Reason::kUnspecified && !status.message().empty()));
}

const server::AnswerContext& Context() {
  static const server::Definitions& state = *new server::Definitions();
  static server::CorrectionTally& corrections = *new server::CorrectionTally();
  static const server::AnswerContext& context = *new server::AnswerContext{state, corrections};
  return context;
}

template <typename Request, typename Response>
void CheckCall(const std::string& bytes) {
  Request request;
  if (request.ParseFromString(bytes)) {
    Response response;
    CheckRefusal(server::Answer(Context(), request, &response));
  }
}

void CheckReshard(const std::string& bytes) {
  v1::PlanReshardRequest request;
  if (request.ParseFromString(bytes)) {
    v1::PlanReshardResponse response;
    int64_t asked = 0;
    const absl::Status status =
        server::Answer(Context(), request, &response, [&asked] { return ++asked > 1000; });
    Require(absl::IsCancelled(status) || status.ok() || ReasonOf(status) != Reason::kUnspecified);
  }
}

void CheckTree(const std::string& bytes) {
  v1::TreeTensors tensors;
  if (!tensors.ParseFromString(bytes)) {
    return;
  }
  rpc::TreeDecoder decoder;
  const auto decoded = decoder.Decode(tensors);
  CheckRefusal(decoded.status());
  if (!decoded.ok()) {
    return;
  }
  server::TreeQuestion question;
  question.mesh = *Mesh::Parse("dp=2,fsdp=3,tp=4");
  question.rules = RuleSetDefinition{
      .rules = *RuleSet::Create({{"w$", PartitionSpec({SpecEntry::Axis("tp")})}, {"", {}}})};
  const auto resolver = server::TreeResolver::Create(std::move(question));
  Require(resolver.ok());
  const auto placements = (*resolver)->Add(*decoded);
  CheckRefusal(placements.status());
  if (placements.ok()) {
    Require(placements->size() == decoded->size());
    CheckRefusal((*resolver)->analysis()->Report().status());
  }
}

}  // namespace

void Check(std::string_view input) {
  using Call = void (*)(const std::string&);
#define SHARDMESH_CALL(Method) CheckCall<v1::Method##Request, v1::Method##Response>
#define SHARDMESH_COMPAT_CALL(Method) \
  CheckCall<compat::v1::Method##Request, compat::v1::Method##Response>
  static constexpr std::array kCalls = {
      Call{CheckTree},
      Call{CheckReshard},
      Call{SHARDMESH_CALL(ResolveSpec)},
      Call{SHARDMESH_CALL(ResolveEffectiveSpec)},
      Call{SHARDMESH_CALL(ResolveAxes)},
      Call{SHARDMESH_CALL(CorrectSpec)},
      Call{SHARDMESH_CALL(ConstrainArray)},
      Call{SHARDMESH_CALL(CompareSpecs)},
      Call{SHARDMESH_CALL(ExplainTensor)},
      Call{SHARDMESH_CALL(DescribeTiling)},
      Call{SHARDMESH_CALL(DescribeProfile)},
      Call{SHARDMESH_COMPAT_CALL(ComputeHash)},
      Call{SHARDMESH_CALL(DescribeMesh)},
      Call{SHARDMESH_COMPAT_CALL(QueryMesh)},
      Call{SHARDMESH_COMPAT_CALL(ListSpecAxes)},
      Call{SHARDMESH_COMPAT_CALL(ParsePatternRules)},
      Call{SHARDMESH_CALL(CheckPattern)},
      Call{SHARDMESH_CALL(RewriteRules)},
      Call{SHARDMESH_CALL(ComposeLogicalRules)},
      Call{SHARDMESH_CALL(ResolveLogicalAxes)},
      Call{SHARDMESH_COMPAT_CALL(ResolveOutputSpec)},
      Call{SHARDMESH_COMPAT_CALL(CheckTensorParallel)},
      Call{SHARDMESH_COMPAT_CALL(DescribeLinearLayer)},
      Call{SHARDMESH_COMPAT_CALL(PromoteDtypes)},
  };
#undef SHARDMESH_COMPAT_CALL
#undef SHARDMESH_CALL
  if (!input.empty()) {
    const auto call = static_cast<unsigned char>(input[0]) % kCalls.size();
    kCalls[call](std::string(input.substr(1)));
  }
}

}  // namespace shardmesh::fuzz
