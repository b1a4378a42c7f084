// Measures the cost of resolving whole trees of tensors: in this process, and over the wire to a
// coordinator.
//
// clang-format off
//   tree_bench chain                     resolve and correct, chained, on one thread: calls a
//                                        second
//   tree_bench batch ADDRESS             the same chain, 100,000 tensors with axes in one call:
//                                        tensors a second
//   tree_bench match ADDRESS NAMES RULES tensors with the names in the file NAMES (one a line), by
//                                        the rules in the file RULES (YAML): seconds
//   tree_bench many ADDRESS COUNT RULES  COUNT tensors with generated names, by the rules in the
//                                        file RULES: seconds, and bytes of the request
// clang-format on
//
// Prints one JSON object: the best and the median of several runs. Checks the answers in the same
// run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "rpc/config.h"
#include "sharding/correction.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/mesh.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"

namespace shardmesh {
namespace {

constexpr int kRuns = 7;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "tree_bench: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T ValueOrFail(absl::StatusOr<T> value) {
  if (!value.ok()) {
    Fail(value.status().ToString());
  }
  return *std::move(value);
}

// Returns the seconds of each run. Makes one run before these, which is not counted.
std::vector<double> Time(const std::function<void()>& run) {
  std::vector<double> seconds;
  run();
  for (int i = 0; i < kRuns; ++i) {
    const absl::Time start = absl::Now();
    run();
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void Print(const std::vector<double>& seconds, nlohmann::json further) {
  further["best_s"] = seconds.front();
  further["median_s"] = seconds[seconds.size() / 2];
  further["worst_s"] = seconds.back();
  std::printf("%s\n", further.dump().c_str());
}

const Shape kShape = {32, 128, 16, 64};

void Chain() {
  constexpr int kCalls = 200'000;
  const PartitionAxis profile;
  const Mesh mesh = *Mesh::Parse("dp=2,fsdp=2,tp=2,sp=2");
  LogicalQuestion question;
  question.dynamic_axes = &(*FindPreset("AttnQSharding"))->dynamic_axes;
  question.shape = absl::MakeConstSpan(kShape);
  int64_t kept = 0;
  const std::vector<double> seconds = Time([&] {
    for (int i = 0; i < kCalls; ++i) {
      const absl::StatusOr<PartitionSpec> requested = ResolveSpec(profile, question);
      kept += Correct(*requested, kShape, mesh)->effective.size();
    }
  });
  if (kept != static_cast<int64_t>(kShape.size()) * kCalls * (kRuns + 1)) {
    Fail("a wrong answer");
  }
  Print(seconds, {{"calls", kCalls}});
}

std::unique_ptr<client::MeshClient> Connect(const std::string& address) {
  return ValueOrFail(client::MeshClient::Connect(address));
}

void Batch(const std::string& address) {
  constexpr int kTensors = 100'000;
  const auto client = Connect(address);
  std::vector<client::TreeTensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back({.name = std::to_string(i),
                       .shape = kShape,
                       .axes = (*FindPreset("AttnQSharding"))->dynamic_axes.axes});
  }
  client::TreeQuestion question;
  question.mesh = *Mesh::Parse("dp=2,fsdp=2,tp=2,sp=2");
  Print(Time([&] {
          const client::TreeAnswer answer =
              ValueOrFail(client->layouts().ResolveTree(question, tensors));
          if (answer.specs.size() != 1 || answer.specs[0].effective.size() != 4) {
            Fail("a wrong answer");
          }
        }),
        {{"calls", kTensors}});
}

void Match(const std::string& address, std::vector<client::TreeTensor> tensors,
           const std::string& rules_path) {
  const auto client = Connect(address);
  const RuleSetDefinition rules = ValueOrFail(rpc::LoadRules(rules_path));
  client::TreeQuestion question;
  question.rules = rules;
  question.match_only = true;
  size_t request_bytes = 0;
  for (const client::TreeTensor& tensor : tensors) {
    request_bytes += tensor.name.size() + 8 * tensor.shape.size() + 16;
  }
  client::TreeAnswer answer;
  const std::vector<double> seconds =
      Time([&] { answer = ValueOrFail(client->layouts().ResolveTree(question, tensors)); });
  for (size_t i = 0; i < tensors.size(); i += 997) {
    const RuleMatch match = ValueOrFail(rules.rules.Match(NameForRules(rules, tensors[i].name),
                                                          absl::MakeConstSpan(tensors[i].shape)));
    if (answer.specs[answer.placements[i].spec_index].effective != match.spec) {
      Fail("a wrong answer about " + tensors[i].name);
    }
  }
  Print(seconds, {{"tensors", tensors.size()}, {"request_bytes", request_bytes}});
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments == std::vector<std::string>{"chain"}) {
    Chain();
  } else if (arguments.size() == 2 && arguments[0] == "batch") {
    Batch(arguments[1]);
  } else if (arguments.size() == 4 && arguments[0] == "match") {
    std::vector<client::TreeTensor> tensors;
    std::ifstream names(arguments[2]);
    for (std::string name; std::getline(names, name);) {
      tensors.push_back({.name = name, .shape = {1024, 1024}});
    }
    Match(arguments[1], std::move(tensors), arguments[3]);
  } else if (arguments.size() == 4 && arguments[0] == "many") {
    const int64_t count = std::atoll(arguments[2].c_str());
    std::vector<client::TreeTensor> tensors;
    for (int64_t i = 0; i < count; ++i) {
      static constexpr const char* kLeaves[] = {"self_attn/q_proj", "self_attn/o_proj",
                                                "mlp/gate_proj", "mlp/down_proj"};
      tensors.push_back(
          {.name = "model/layers/" + std::to_string(i / 4) + "/" + kLeaves[i % 4] + "/kernel",
           .shape = {4096, 4096}});
    }
    Match(arguments[1], std::move(tensors), arguments[3]);
  } else {
    Fail("wrong arguments; see the head of its source");
  }
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) { return shardmesh::Main(argc, argv); }
