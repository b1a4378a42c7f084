// Constants of the wire contract that both ends of a call need.
#ifndef SHARDMESH_RPC_CONTRACT_H_
#define SHARDMESH_RPC_CONTRACT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardmesh::rpc {

// The versions of the protocol between coordinator, workers and clients that this build speaks: the
// newest one and its predecessor. A cluster can therefore be upgraded one process after the other.
inline constexpr int32_t kNewestProtocol = 1;
inline constexpr int32_t kOldestProtocol = std::max(1, kNewestProtocol - 1);

// Returns the newest version that this build has in common with a peer that speaks versions `min`
// to `max`; nullopt if there is none.
constexpr std::optional<int32_t> CommonProtocol(int32_t min, int32_t max) {
  const int32_t newest = std::min(max, kNewestProtocol);
  if (newest < min || newest < kOldestProtocol) return std::nullopt;
  return newest;
}

// An ability of this build's coordinator that a coordinator of another build may lack. GetVersion
// lists the names; cluster_service.proto explains them.
struct Feature {
  std::string_view name;
  // The methods and fields that belong to the ability, as full protobuf names. Unused elements at
  // the end are empty texts.
  std::array<std::string_view, 14> elements;
};
inline constexpr Feature kFeatures[] = {
    {"array_cache", {"shardmesh.v1.ClusterService.DropCache"}},
    {"array_slices", {"shardmesh.v1.BeginGetRequest.slice"}},
    {"batches",
     {"shardmesh.v1.ResolveService.BatchResolveSpecs",
      "shardmesh.v1.ResolveService.BatchConstrainArrays"}},
    {"cluster_watch", {"shardmesh.v1.ClusterService.WatchCluster"}},
    {"content_reuse", {"shardmesh.v1.ArrayService.FindContent", "shardmesh.v1.PutTensor.content"}},
    {"detached_saves", {"shardmesh.v1.BeginSaveRequest.detached"}},
    {"effective_specs", {"shardmesh.v1.ResolveService.ResolveEffectiveSpec"}},
    {"execute_stream", {"shardmesh.v1.ComputeService.ExecuteStream"}},
    {"get_reports", {"shardmesh.v1.OperationService.ReportGet"}},
    {"layer_scales",
     {"shardmesh.v1.LinearLayer.use_scales", "shardmesh.v1.LinearRequest.further_scales"}},
    {"linear_layers",
     {"shardmesh.v1.CompileRequest.layer", "shardmesh.v1.LinearRequest.biases",
      "shardmesh.v1.LinearRequest.layer", "shardmesh.v1.LinearRequest.weights",
      "shardmesh.v1.LinearResponse.outputs"}},
    {"operation_lists", {"shardmesh.v1.OperationService.ListOperations"}},
    {"output_specs", {"shardmesh.v1.OutputLayout.output_spec"}},
    {"plan_candidates", {"shardmesh.v1.CompileRequest.candidates"}},
    {"put_conversions", {"shardmesh.v1.PutTensor.converted_source"}},
    {"put_reuse", {"shardmesh.v1.BeginPutHeader.reuse", "shardmesh.v1.PutTensor.origin"}},
    {"put_sources", {"shardmesh.v1.BeginPutHeader.files", "shardmesh.v1.PutTensor.source"}},
    {"puts_by_axes", {"shardmesh.v1.PutTensor.axes", "shardmesh.v1.PutTensor.preset"}},
    {"replicas", {"shardmesh.v1.BeginPutHeader.replicas"}},
    {"reshards", {"shardmesh.v1.ArrayService.Reshard"}},
    {"saves", {"shardmesh.v1.SaveService.BeginSave", "shardmesh.v1.SaveService.WaitSave"}},
    {"second_copies", {"shardmesh.v1.BeginGetRequest.accept_second_copy"}},
    {"session_lists", {"shardmesh.v1.SessionService.ListSessions"}},
    {"snapshots", {"shardmesh.v1.AdminService.Snapshot"}},
    {"step_traces", {"shardmesh.v1.OutputOptions.return_trace"}},
    {"symbolic_dimensions",
     {"shardmesh.v1.Program.symbol", "shardmesh.v1.Program.symbolic_extents",
      "shardmesh.v1.ReshapeOp.symbolic_shape", "shardmesh.v1.SliceOp.symbolic_limits",
      "shardmesh.v1.SliceOp.symbolic_starts"}},
    {"tensor_ops", {"shardmesh.v1.Program.updates", "shardmesh.v1.ProgramOp.tensor"}},
    {"tile_reuse", {"shardmesh.v1.TensorContent.equal_tiles"}},
    {"uneven_cuts",
     {"shardmesh.v1.BeginPutHeader.uneven", "shardmesh.v1.BeginPutHeader.weights",
      "shardmesh.v1.DescribeTilingRequest.cut_points", "shardmesh.v1.DescribeTilingRequest.uneven",
      "shardmesh.v1.DescribeTilingRequest.weights"}},
    {"uneven_reshards",
     {"shardmesh.v1.ReshardOp.cut_points", "shardmesh.v1.ReshardRequest.uneven",
      "shardmesh.v1.ReshardRequest.weights"}},
    {"unnamed_arrays", {"shardmesh.v1.ListArraysRequest.include_unnamed"}},
    {"validate_only",
     {"shardmesh.v1.BeginPutHeader.validate_only", "shardmesh.v1.BeginSaveRequest.validate_only",
      "shardmesh.v1.CreateEntryRequest.validate_only",
      "shardmesh.v1.DeleteEntryRequest.validate_only",
      "shardmesh.v1.DeleteNameRequest.validate_only",
      "shardmesh.v1.DrainWorkerRequest.validate_only",
      "shardmesh.v1.DropQuarantinedRequest.validate_only",
      "shardmesh.v1.ForgetWorkerRequest.validate_only",
      "shardmesh.v1.MoveNameRequest.validate_only",
      "shardmesh.v1.ReplaceWorkerRequest.validate_only",
      "shardmesh.v1.ReshardRequest.validate_only", "shardmesh.v1.ResizeMeshRequest.validate_only",
      "shardmesh.v1.RestoreQuarantinedRequest.validate_only",
      "shardmesh.v1.UpdateEntryRequest.validate_only"}},
    {"weight_scales", {"shardmesh.v1.LinearOp.scales", "shardmesh.v1.LinearRequest.scales"}},
    {"worker_changes",
     {"shardmesh.v1.ClusterService.DrainWorker", "shardmesh.v1.ClusterService.ForgetWorker",
      "shardmesh.v1.ClusterService.ReplaceWorker"}},
    {"zeros", {"shardmesh.v1.PutTensor.zeros"}},
};

// The feature in Hello.features of a worker that fills tiles itself: the orders CheckFiles and
// FillTiles of attach_service.proto.
inline constexpr std::string_view kFillFeature = "fill";

// The feature in Hello.features of a worker that also transposes and converts tensors of files:
// FillTile.converted_file of attach_service.proto's orders.
inline constexpr std::string_view kFillConversionsFeature = "fill_conversions";

// The feature in Hello.features of a worker that computes digests of its tiles: the order
// DigestTiles of attach_service.proto.
inline constexpr std::string_view kDigestFeature = "tile_digests";

// The feature in Hello.features of a worker that answers each CoordinatorClock of
// attach_service.proto with a heartbeat at once.
inline constexpr std::string_view kClockAnswersFeature = "clock_answers";

// The feature in Hello.features of a worker that multiplies batches of matrices: the plan's
// LocalMatmul may have a right operand of more than two dimensions, or transpose a left operand of
// more than two.
inline constexpr std::string_view kBatchesFeature = "batches_of_matrices";

// The feature in Hello.features of a worker that runs plans with tensor ops (Instruction.compute)
// and with Plan.updates.
inline constexpr std::string_view kTensorOpsFeature = "tensor_ops";
// The feature in Hello.features of a worker that runs the plan's GatherMatmul and MatmulScatter,
// and whose kernel gives these the bits of the separate instructions.
inline constexpr std::string_view kOverlapFeature = "overlapped_exchanges";

// The feature in Hello.features of a worker that has kOverlapFeature, and also runs a GatherMatmul
// and a MatmulScatter along columns, along batch dimensions, of a transposed left operand, and of a
// gathered right one.
inline constexpr std::string_view kOverlapPartsFeature = "overlapped_parts";

// The feature in Hello.features of a worker that runs the plan's FusedCompute.
inline constexpr std::string_view kFusedComputeFeature = "fused_compute";

// The feature in Hello.features of a worker that multiplies values of F16, and floats by weights of
// I8 (LocalMatmul.scales).
inline constexpr std::string_view kShortProductsFeature = "short_products";

// Maximum number of tiles that one GetTiles call may request.
inline constexpr int kMaxTilesPerGet = 10'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONTRACT_H_
