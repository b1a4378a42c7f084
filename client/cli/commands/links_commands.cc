// Command links: how fast the links between workers are.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/table.h"
#include "client/types/cluster_status.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

std::string TransportText(const MeasuredLink& link) {
  return link.shares_memory ? "shared memory" : "stream";
}

std::string NameOf(const ClusterLinks::Worker& worker) {
  return worker.rank.has_value() ? StrCat(*worker.rank, " ", worker.identity) : worker.identity;
}

// Prints a matrix with a row and a column for each worker.
template <typename ToText>
void PrintMatrix(const ClusterLinks& links, std::string_view title, ToText to_text) {
  std::vector<Table::Column> columns = {{std::string(title)}};
  for (const ClusterLinks::Worker& worker : links.workers) {
    columns.push_back(
        {worker.rank.has_value() ? StrCat(*worker.rank) : worker.identity, Table::Align::kRight});
  }
  Table table(std::move(columns));
  for (const ClusterLinks::Worker& one : links.workers) {
    std::vector<std::string> row = {NameOf(one)};
    for (const ClusterLinks::Worker& other : links.workers) {
      const MeasuredLink* const link = links.Find(one.identity, other.identity);
      row.push_back(one.identity == other.identity ? "-"
                    : link == nullptr              ? "not measured yet"
                                                   : to_text(*link));
    }
    table.AddRow(std::move(row));
  }
  table.Print();
}

void PrintLinks(const ClusterLinks& links) {
  const auto workers = std::ssize(links.workers);
  if (workers < 2) {
    std::cout << "A single worker has no links\n";
    return;
  }
  std::cout << links.links.size() << " of " << FormatCount(workers * (workers - 1) / 2, "link")
            << " measured\n";
  if (links.links.empty()) {
    std::cout << "Workers measure their links in the first seconds; ask again\n";
    return;
  }
  std::cout << "\n";
  PrintMatrix(links, "latency", [](const auto& link) { return FormatTime(link.latency); });
  std::cout << "\n";
  PrintMatrix(links, "bandwidth", [](const MeasuredLink& link) {
    // The rate in an answer may be any double, but FormatBytes takes a 64-bit integer.
    return StrCat(FormatBytes(static_cast<int64_t>(std::min(link.bytes_per_second, 1e18))), "/s");
  });
  std::cout << "\n";
  PrintMatrix(links, "transport", TransportText);
}

Json LinksJson(const ClusterLinks& links) {
  Json workers = Json::array();
  for (const ClusterLinks::Worker& worker : links.workers) {
    workers.push_back({{"identity", worker.identity},
                       {"rank", worker.rank.has_value() ? Json(*worker.rank) : Json()}});
  }
  Json pairs = Json::array();
  for (size_t i = 0; i < links.workers.size(); ++i) {
    for (size_t j = i + 1; j < links.workers.size(); ++j) {
      const std::string& one = links.workers[i].identity;
      const std::string& other = links.workers[j].identity;
      const MeasuredLink* const link = links.Find(one, other);
      const bool measured = link != nullptr;
      pairs.push_back({{"workers", {one, other}},
                       {"measured", measured},
                       {"transport", measured ? Json(TransportText(*link)) : Json()},
                       {"latency_s", measured ? Json(Seconds(link->latency)) : Json()},
                       {"bytes_per_second", measured ? Json(link->bytes_per_second) : Json()},
                       {"measure_time", measured ? Json(Timestamp(link->measured)) : Json()}});
    }
  }
  return {{"workers", std::move(workers)}, {"links", std::move(pairs)}};
}

absl::Status RunLinks(const Invocation& invocation, const std::string& mesh_id) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const ClusterLinks links, client->cluster().ListLinks(mesh_id));
  if (invocation.json) {
    invocation.Print(LinksJson(links));
  } else {
    PrintLinks(links);
  }
  return absl::OkStatus();
}

}  // namespace

void AddLinksCommands(CommandLine* line) {
  auto mesh_id = std::make_shared<std::string>();
  CLI::App* const links = line->AddCommand(
      "links", "Show how fast the links between workers are, as they measured them",
      [mesh_id](const Invocation& i) { return RunLinks(i, *mesh_id); });
  links->add_option("--mesh", *mesh_id,
                    "between the workers of this mesh, by rank (default: between all workers)");
  line->CanBeWatched(links);
}

}  // namespace shardmesh::client
