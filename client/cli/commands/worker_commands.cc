// The commands admin worker drain, forget and replace.
#include <cstdint>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "client/types/cluster_status.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kValidateOnlyHelp[] = "check everything, and change nothing";

Json RanksJson(const std::vector<ServedRank>& ranks) {
  Json json = Json::array();
  for (const ServedRank& rank : ranks)
    json.push_back({{"mesh", rank.mesh_id}, {"rank", rank.rank}});
  return json;
}

// Returns text such as "rank 3 of mesh default, rank 0 of mesh small and 4 more", or "no rank".
std::string RanksText(const std::vector<ServedRank>& ranks, int64_t count) {
  constexpr int64_t kMostNamed = 8;
  std::vector<std::string> named;
  for (const ServedRank& rank : ranks) {
    if (std::ssize(named) == kMostNamed) break;
    named.push_back(StrCat("rank ", rank.rank, " of mesh ", rank.mesh_id));
  }
  if (named.empty()) return "no rank";
  const int64_t more = count - std::ssize(named);
  return StrCat(StrJoin(named, ", "), more == 0 ? "" : StrCat(" and ", more, " more"));
}

absl::Status RunDrainWorker(const Invocation& invocation, const std::string& identity, bool resume,
                            bool validate_only) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const DrainedWorker worker,
                             client->cluster().DrainWorker(identity, resume, validate_only));
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"worker", identity},
                                      {"draining", !resume},
                                      {"ranks", RanksJson(worker.ranks)},
                                      {"rank_count", worker.rank_count},
                                      {"work", worker.work},
                                      {"arrays", worker.arrays},
                                      {"used_bytes", worker.used_bytes}},
                                     validate_only));
    return absl::OkStatus();
  }
  if (resume) {
    std::cout << identity << (validate_only ? " would take work again\n" : " takes work again\n");
    return absl::OkStatus();
  }
  std::cout << identity << (validate_only ? " would drain" : " drains") << ". It holds:\n"
            << "  ranks: " << RanksText(worker.ranks, worker.rank_count) << "\n"
            << "  steps and transfers under way: " << worker.work << "\n"
            << "  tiles of arrays: " << worker.arrays << ", " << FormatBytes(worker.used_bytes)
            << " in use\n";
  return absl::OkStatus();
}

absl::Status RunForgetWorker(const Invocation& invocation, const std::string& identity,
                             bool validate_only) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_RETURN_IF_ERROR(client->cluster().ForgetWorker(identity, validate_only));
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"forgotten", identity}}, validate_only));
  } else {
    std::cout << identity << (validate_only ? " would be forgotten\n" : " is forgotten\n");
  }
  return absl::OkStatus();
}

absl::Status RunReplaceWorker(const Invocation& invocation, const std::string& identity,
                              const std::string& replacement, bool validate_only) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const ReplacedWorker replaced,
                             client->cluster().ReplaceWorker(identity, replacement, validate_only));
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"worker", identity},
                                      {"replacement", replacement},
                                      {"ranks", RanksJson(replaced.ranks)},
                                      {"rank_count", replaced.rank_count}},
                                     validate_only));
  } else if (replaced.rank_count == 0) {
    std::cout << identity
              << (validate_only ? " serves no rank; nothing would change\n"
                                : " serves no rank (any more); nothing changed\n");
  } else {
    std::cout << replacement << (validate_only ? " would get from " : " has from ") << identity
              << ": " << RanksText(replaced.ranks, replaced.rank_count) << "\n";
    if (!validate_only) {
      std::cout
          << "Lost tiles are read again now where there is a source (`shardmesh ops ls --kind "
             "repair`);\narrays without one stay degraded (`shardmesh ls`)\n";
    }
  }
  return absl::OkStatus();
}

absl::Status RunDropCache(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const DroppedCache dropped, client->cluster().DropCache());
  if (invocation.json) {
    invocation.Print({{"arrays", dropped.arrays}, {"bytes", dropped.bytes}});
  } else {
    std::cout << "Released " << FormatCount(dropped.arrays, "cached array") << " of "
              << FormatBytes(dropped.bytes) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddWorkerCommands(CommandLine* line) {
  CLI::App* const admin = line->AddGroup("admin", "Look after the state of a cluster");
  CLI::App* const worker =
      line->AddGroup("worker", "Take workers out of use, and replace lost ones", admin);

  CLI::App* const cache =
      line->AddGroup("cache", "Free the memory of released arrays that workers keep", admin);
  line->AddCommand("drop", "Release all arrays that the workers keep only as a cache", RunDropCache,
                   cache);

  auto drained = std::make_shared<std::string>();
  auto resume = std::make_shared<bool>(false);
  auto validates_drain = std::make_shared<bool>(false);
  CLI::App* const drain = line->AddCommand(
      "drain", "Give a worker no new steps, puts and ranks; show what it holds",
      [=](const Invocation& i) { return RunDrainWorker(i, *drained, *resume, *validates_drain); },
      worker);
  drain->add_option("WORKER", *drained, "identity of the worker")->required();
  drain->add_flag("--resume", *resume, "take the worker into use again");
  drain->add_flag("--validate-only", *validates_drain, kValidateOnlyHelp);

  auto forgotten = std::make_shared<std::string>();
  auto validates_forget = std::make_shared<bool>(false);
  CLI::App* const forget = line->AddCommand(
      "forget", "Forget a lost worker that serves no rank",
      [=](const Invocation& i) { return RunForgetWorker(i, *forgotten, *validates_forget); },
      worker);
  forget->add_option("WORKER", *forgotten, "identity of the worker")->required();
  forget->add_flag("--validate-only", *validates_forget, kValidateOnlyHelp);

  auto replaced = std::make_shared<std::string>();
  auto replacement = std::make_shared<std::string>();
  auto validates_replace = std::make_shared<bool>(false);
  CLI::App* const replace = line->AddCommand(
      "replace",
      "Give the ranks of a lost worker to an attached one, which reads the lost tiles again",
      [=](const Invocation& i) {
        return RunReplaceWorker(i, *replaced, *replacement, *validates_replace);
      },
      worker);
  replace->add_option("WORKER", *replaced, "identity of the lost worker")->required();
  replace->add_option("REPLACEMENT", *replacement, "identity of the worker that gets its ranks")
      ->required();
  replace->add_flag("--validate-only", *validates_replace, kValidateOnlyHelp);
}

}  // namespace shardmesh::client
