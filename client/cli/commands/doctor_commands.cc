// Command doctor: which ranks wait for which, failures, and each rank's last instructions.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/table.h"
#include "client/types/cluster_status.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr int64_t kDefaultRecords = 8;
constexpr int64_t kMaxRecords = 1024;

struct DoctorFlags {
  std::optional<int64_t> step;
  std::string worker;
  int64_t records = kDefaultRecords;
};

bool HasCome(const FlightRecord::Peer& peer) { return peer.data_came != absl::InfiniteFuture(); }

// Returns the time of day in UTC, such as `12:03:11.250`.
std::string TimeOfDay(absl::Time time) {
  return absl::FormatTime("%H:%M:%E3S", time, absl::UTCTimeZone());
}

// Returns the peers whose data has arrived, if `has_come`; otherwise the peers whose data has not
// arrived yet.
std::string PeersText(const FlightRecord& record, bool has_come) {
  std::vector<DeviceId> ranks;
  for (const FlightRecord::Peer& peer : record.peers) {
    if (HasCome(peer) == has_come) {
      ranks.push_back(peer.rank);
    }
  }
  return StrJoin(ranks, ",");
}

std::string OutcomeText(const FlightRecord& record) {
  if (!record.outcome.ok()) {
    return StrCat(absl::StatusCodeToString(record.outcome.code()),
                  record.waits_for.has_value() ? StrCat(", waited for rank ", *record.waits_for)
                                               : std::string());
  }
  if (!record.is_running()) {
    return "done";
  }
  return record.waits_for.has_value() ? StrCat("waits for rank ", *record.waits_for) : "runs";
}

std::vector<std::string> Row(const WorkerFlight& flight, const FlightRecord& record) {
  return {flight.identity,
          StrCat(record.rank),
          StrCat(record.step),
          StrCat(record.op),
          record.what,
          TimeOfDay(record.started),
          record.is_running() ? "-" : FormatTime(record.ended - record.started),
          PeersText(record, /*has_come=*/true),
          PeersText(record, /*has_come=*/false),
          OutcomeText(record)};
}

void PrintRecords(const std::vector<WorkerFlight>& flights) {
  Table table({{"worker"},
               {"rank", Table::Align::kRight},
               {"step", Table::Align::kRight},
               {"instruction", Table::Align::kRight},
               {"what"},
               {"began (UTC)"},
               {"took", Table::Align::kRight},
               {"data came of"},
               {"missing"},
               {"outcome"}});
  bool is_empty = true;
  for (const WorkerFlight& flight : flights) {
    for (const FlightRecord& record : flight.records) {
      table.AddRow(Row(flight, record));
      is_empty = false;
    }
    if (flight.progress.has_value() && flight.progress->instruction.has_value()) {
      table.AddRow(Row(flight, *flight.progress->instruction));
      is_empty = false;
    }
  }
  if (!is_empty) {
    std::cout << "\n";
    table.Print();
  }
}

Json RecordJson(const FlightRecord& record) {
  Json peers = Json::array();
  for (const FlightRecord::Peer& peer : record.peers) {
    peers.push_back({{"rank", peer.rank},
                     {"data_time", HasCome(peer) ? Json(Timestamp(peer.data_came)) : Json()}});
  }
  return {{"number", record.number},
          {"step", record.step},
          {"mesh", record.mesh_id},
          {"rank", record.rank},
          {"instruction", record.op},
          {"label", record.what},
          {"start_time", Timestamp(record.started)},
          {"end_time", record.is_running() ? Json() : Json(Timestamp(record.ended))},
          {"error", record.outcome.ok() ? Json() : Json(std::string(record.outcome.message()))},
          {"peers", std::move(peers)},
          {"omitted_peers", record.omitted_peers},
          {"waits_for", record.waits_for.has_value() ? Json(*record.waits_for) : Json()}};
}

Json FindingJson(const ClusterFinding& finding) {
  Json culprits = Json::array();
  for (const ClusterFinding::Culprit& culprit : finding.culprits) {
    culprits.push_back({{"rank", culprit.rank.has_value() ? Json(*culprit.rank) : Json()},
                        {"worker", culprit.identity},
                        {"reason", culprit.reason}});
  }
  return {{"kind", std::string(ClusterFindingName(finding.kind))},
          {"summary", finding.summary},
          {"step", finding.step.has_value() ? Json(*finding.step) : Json()},
          {"op", finding.op},
          {"mesh", finding.mesh_id},
          {"instruction", finding.instruction.has_value() ? Json(*finding.instruction) : Json()},
          {"label", finding.label},
          {"waiting_ranks", finding.waiting_ranks},
          {"culprits", std::move(culprits)},
          {"time", Timestamp(finding.time)}};
}

Json DoctorJson(const Diagnosis& diagnosis, const std::vector<WorkerFlight>& flights) {
  Json findings = Json::array();
  for (const ClusterFinding& finding : diagnosis.findings) {
    findings.push_back(FindingJson(finding));
  }
  Json workers = Json::array();
  for (const WorkerFlight& flight : flights) {
    Json records = Json::array();
    for (const FlightRecord& record : flight.records) {
      records.push_back(RecordJson(record));
    }
    Json progress;
    if (flight.progress.has_value()) {
      progress = {{"step", flight.progress->step},
                  {"start_time", Timestamp(flight.progress->started)},
                  {"instruction", flight.progress->instruction.has_value()
                                      ? RecordJson(*flight.progress->instruction)
                                      : Json()}};
    }
    workers.push_back({{"identity", flight.identity},
                       {"incarnation", StrCat(flight.incarnation)},
                       {"state", std::string(WorkerStateName(flight.state))},
                       {"heartbeat_age_s", Seconds(flight.heartbeat_age)},
                       {"progress", std::move(progress)},
                       {"records", std::move(records)},
                       {"omitted_records", flight.omitted_records}});
  }
  return {{"healthy", diagnosis.healthy},
          {"verdict", diagnosis.verdict},
          {"findings", std::move(findings)},
          {"workers", std::move(workers)}};
}

absl::Status RunDoctor(const Invocation& invocation, const DoctorFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const Diagnosis diagnosis, client->cluster().Diagnose(flags.step));
  std::vector<WorkerFlight> flights;
  if (flags.records > 0) {
    SHARDMESH_ASSIGN_OR_RETURN(flights, client->cluster().ListFlightRecords(
                                            {.identity = flags.worker,
                                             .step = flags.step,
                                             .max_records = static_cast<int32_t>(flags.records)}));
  }
  if (flags.step.has_value()) {
    for (WorkerFlight& flight : flights) {
      if (flight.progress.has_value() && flight.progress->step != flags.step) {
        flight.progress.reset();
      }
    }
  }
  if (invocation.json) {
    invocation.Print(DoctorJson(diagnosis, flights));
  } else {
    std::cout << diagnosis.verdict << "\n";
    for (size_t i = 1; i < diagnosis.findings.size(); ++i) {
      std::cout << "also: " << diagnosis.findings[i].summary << "\n";
    }
    PrintRecords(flights);
  }
  return diagnosis.healthy
             ? absl::OkStatus()
             : absl::FailedPreconditionError(StrCat(
                   "the cluster has ", FormatCount(std::ssize(diagnosis.findings), "finding")));
}

}  // namespace

void AddDoctorCommands(CommandLine* line) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* const doctor = line->AddCommand(
      "doctor", "Show which ranks wait for which, what failed lately, and which worker is to blame",
      [flags](const Invocation& i) { return RunDoctor(i, *flags); });
  line->CanBeWatched(doctor);
  doctor->add_option("--step", flags->step, "only about this step (default: about all)")
      ->check(WholeNumberFrom(1));
  doctor->add_option("--worker", flags->worker, "show only the records of this worker");
  doctor
      ->add_option("--records", flags->records,
                   StrCat("how many of each worker's last instructions to show, 0 for none "
                          "(default: ",
                          kDefaultRecords, ")"))
      ->check(CLI::Range(int64_t{0}, kMaxRecords));
}

}  // namespace shardmesh::client
