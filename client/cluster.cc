// The calls of ClusterClient, over the transport and the session of ClientCore.
#include "client/cluster.h"

#include "client/client_core.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {

absl::StatusOr<ServerVersion> ClusterClient::GetVersion() {
  return core_->coordinator().GetVersion(core_->CallDeadline());
}

absl::StatusOr<ClusterStatus> ClusterClient::GetStatus(const std::string& mesh_id) {
  return core_->coordinator().GetStatus(mesh_id, core_->CallDeadline());
}

absl::StatusOr<Diagnosis> ClusterClient::Diagnose(int64_t step) {
  return core_->coordinator().Diagnose(step, core_->CallDeadline());
}

absl::StatusOr<ClusterLinks> ClusterClient::ListLinks(const std::string& mesh_id) {
  return core_->coordinator().ListLinks(mesh_id, core_->CallDeadline());
}

absl::StatusOr<DrainedWorker> ClusterClient::DrainWorker(const std::string& identity, bool resume) {
  return core_->coordinator().DrainWorker(identity, resume, core_->CallDeadline());
}

absl::Status ClusterClient::ForgetWorker(const std::string& identity) {
  return core_->coordinator().ForgetWorker(identity, core_->CallDeadline());
}

absl::StatusOr<ReplacedWorker> ClusterClient::ReplaceWorker(const std::string& identity,
                                                            const std::string& replacement) {
  return core_->coordinator().ReplaceWorker(identity, replacement, core_->CallDeadline());
}

absl::Status ClusterClient::WatchChanges(const std::vector<ClusterSubject>& subjects,
                                         const std::function<bool(const ClusterChange&)>& on_change,
                                         Cancellation* cancellation) {
  return core_->coordinator().WatchCluster(subjects, on_change, cancellation, {});
}

absl::StatusOr<std::vector<OpenSessionInfo>> ClusterClient::ListSessions() {
  return core_->coordinator().ListSessions(core_->CallDeadline());
}

absl::StatusOr<QuarantineList> ClusterClient::ListQuarantine(const std::string& identity) {
  return core_->coordinator().ListQuarantine(identity, core_->CallDeadline());
}

absl::StatusOr<RestoredArray> ClusterClient::RestoreQuarantined(const std::string& array_id,
                                                                const std::string& name) {
  return core_->coordinator().RestoreQuarantined(array_id, name, core_->CallDeadline());
}

absl::StatusOr<QuarantineDrop> ClusterClient::DropQuarantined(
    const std::vector<std::string>& array_ids, bool even_partly) {
  return core_->coordinator().DropQuarantined(array_ids, even_partly, core_->CallDeadline());
}

absl::StatusOr<std::vector<WorkerFlight>> ClusterClient::ListFlightRecords(
    const FlightQuestion& question) {
  return core_->coordinator().ListFlightRecords(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<Operation>> ClusterClient::ListOperations(
    const std::vector<OperationState>& states) {
  return core_->coordinator().ListOperations(states, core_->CallDeadline());
}

absl::StatusOr<Operation> ClusterClient::GetOperation(const std::string& operation_id) {
  return core_->coordinator().GetOperation(operation_id, core_->CallDeadline());
}

absl::StatusOr<Operation> ClusterClient::WatchOperation(
    const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress) {
  return core_->coordinator().WatchOperation(operation_id, on_progress, nullptr,
                                             Until(core_->TransferDeadline()));
}

absl::StatusOr<Operation> ClusterClient::CancelOperation(const std::string& operation_id,
                                                         std::optional<absl::Duration> timeout) {
  const rpc::SteadyDeadline deadline =
      timeout.has_value() ? rpc::SteadyDeadline::After(*timeout) : core_->CallsDeadline();
  return core_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        return core_->coordinator().CancelOperation(session_id, operation_id, options);
      });
}

}  // namespace shardmesh::client
