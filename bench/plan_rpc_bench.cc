// R4 of docs/benchmarks.md: plans of large models over the wire.
//
// - R4-plan: time and memory for the layout of 90,000 tensors on 65,536 devices.
// - R4-search: time for a search of all meshes of 4,096 devices over five axes for that model.
// - R4-reshard: time for a plan of the data that moves between two layouts of 131,072 tiles each.
//
// The server is a coordinator in this process; the client reaches it over loopback TCP. The
// reported memory is that of client and server together, including the client's tree of tensors.
// Prints one JSON object for each argument.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "process/log.h"
#include "process/mutex_checks.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int kRounds = 5;

[[noreturn]] void Fail(std::string_view what, const absl::Status& status) {
  std::fprintf(stderr, "plan_rpc_bench: %s: %s\n", std::string(what).c_str(),
               status.ToString().c_str());
  std::exit(1);
}

// Returns the value, in bytes, of the line `key` in /proc/self/status.
int64_t MemoryOf(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) == 0) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

void Print(const char* id, const char* what, double ours, const char* unit, double target) {
  std::printf("%s\n", nlohmann::json{{"id", id},
                                     {"what", what},
                                     {"ours", ours},
                                     {"peer", nullptr},
                                     {"unit", unit},
                                     {"ratio", ours / target},
                                     {"target", target},
                                     {"met", ours <= target}}
                          .dump()
                          .c_str());
}

PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
SpecEntry Axis(const char* name) { return SpecEntry::Axis(name); }
SpecEntry Axes(std::vector<AxisName> names) { return SpecEntry::Axes(std::move(names)); }

// Returns a mixture-of-experts model: 100 layers of 294 experts with three weights each, and 18
// other tensors.
std::vector<client::TreeTensor> Model() {
  std::vector<client::TreeTensor> tensors;
  const auto add = [&](std::string name, Shape shape) {
    tensors.push_back({.name = std::move(name), .shape = std::move(shape), .dtype = Dtype::kBF16});
  };
  for (int layer = 0; layer < 100; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    for (int expert = 0; expert < 294; ++expert) {
      const std::string of = StrCat(prefix, "mlp.experts.", expert, ".");
      add(of + "gate_proj.weight", {2048, 7168});
      add(of + "up_proj.weight", {2048, 7168});
      add(of + "down_proj.weight", {7168, 2048});
    }
    for (int i = 0; i < 18; ++i) {
      constexpr const char* kNames[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                        "self_attn.v_proj.weight", "self_attn.o_proj.weight",
                                        "mlp.gate.weight",         "input_layernorm.weight"};
      add(StrCat(prefix, i, ".", kNames[i % 6]), i % 6 == 5 ? Shape{7168} : Shape{7168, 7168});
    }
  }
  return tensors;
}

client::RuleSetSelector Rules() {
  std::vector<Rule> rules = {
      {"embed_tokens", Spec({Axis("tp"), Axis("fsdp")})},
      {"(q|k|v)_proj\\.weight$", Spec({Axes({"fsdp", "sp"}), Axis("tp")})},
      {"o_proj\\.weight$", Spec({Axis("tp"), Axes({"fsdp", "sp"})})},
      {"experts\\.\\d+\\.(gate|up)_proj", Spec({Axis("tp"), Axes({"fsdp", "sp"})})},
      {"experts\\.\\d+\\.down_proj", Spec({Axes({"fsdp", "sp"}), Axis("tp")})},
      {"norm\\.weight$", PartitionSpec()},
      {"mlp\\.gate", Spec({Axis("fsdp"), SpecEntry::None()})},
      {".*", PartitionSpec()}};
  auto set = RuleSet::Create(std::move(rules));
  if (!set.ok()) {
    Fail("rules", set.status());
  }
  return RuleSetDefinition{.rules = *std::move(set)};
}

void Plan(client::MeshClient& client) {
  const int64_t before = MemoryOf("VmRSS:");
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the kernel's peak of resident memory
  double best = 1e9;
  {
    const std::vector<client::TreeTensor> model = Model();
    client::TreeQuestion question;
    question.rules = Rules();
    question.mesh = *Mesh::Parse("dp=64,fsdp=8,sp=4,tp=32");
    for (int round = 0; round < kRounds; ++round) {
      const absl::Time start = absl::Now();
      const auto answer = client.layouts().ResolveTree(question, model);
      best = std::min(best, absl::ToDoubleMilliseconds(absl::Now() - start));
      if (!answer.ok() || answer->report.devices != 65'536) {
        Fail("plan", answer.status());
      }
    }
  }
  Print("R4-plan", "plan of 90,000 tensors on 65,536 devices", best, "ms", 250);
  Print("R4-plan", "peak of both sides' memory, the tree included",
        static_cast<double>(MemoryOf("VmHWM:") - before) / 1e6, "MB", 200);
}

void Search(client::MeshClient& client) {
  const std::vector<client::TreeTensor> model = Model();
  client::SearchQuestion question = {.devices = 4096,
                                     .axes = {{"dp"}, {"fsdp"}, {"tp"}, {"sp"}, {"ep"}},
                                     .device_memory_bytes = int64_t{80} << 30,
                                     .rules = Rules()};
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const absl::Time start = absl::Now();
    const auto answer = client.layouts().SearchMeshes(question, model);
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
    if (!answer.ok() || answer->result.evaluated != 1820) {
      Fail("search", answer.status());
    }
  }
  Print("R4-search", "search of 1,820 meshes of 4,096 devices for 90,000 tensors", best, "s", 5);
}

void Reshard(client::MeshClient& client) {
  struct Case {
    const char* what;
    PartitionSpec from;
    PartitionSpec to;
  };
  const Case kCases[] = {
      {"reshard of 131,072 tiles, axes swapped between dimensions",
       Spec({Axes({"a", "b"}), Axis("c")}), Spec({Axis("c"), Axes({"b", "a"})})},
      {"reshard of 131,072 tiles, axes in another order", Spec({Axes({"a", "b", "c"})}),
       Spec({Axes({"c", "b", "a"})})},
      {"reshard of 131,072 tiles, all to all", Spec({Axes({"a", "b", "c"})}),
       Spec({SpecEntry::None(), Axes({"a", "b", "c"})})},
  };
  const Mesh mesh = *Mesh::Parse("a=64,b=64,c=32");
  for (const Case& c : kCases) {
    const client::ReshardQuestion question = {.from_mesh = mesh,
                                              .from = c.from,
                                              .to_mesh = mesh,
                                              .to = c.to,
                                              .shape = {int64_t{1} << 17, int64_t{1} << 17},
                                              .dtype = Dtype::kBF16,
                                              .devices = {12'345},
                                              .omit_regions = true};
    double best = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      const absl::Time start = absl::Now();
      const auto answer = client.layouts().PlanReshard(question);
      best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
      if (!answer.ok()) {
        Fail(c.what, answer.status());
      }
    }
    Print("R4-reshard", c.what, best, "s", 1);
  }
}

int Main(int argc, char** argv) {
  SkipMutexChecks();
  ConfigureLog({.level = LogLevel::kOff});
  server::CoordinatorOptions options;
  options.listen_address = "127.0.0.1:0";
  options.http_address = "";
  options.mesh = *Mesh::Parse("fsdp=2,tp=2");
  const auto coordinator = server::CoordinatorServer::Start(std::move(options));
  if (!coordinator.ok()) {
    Fail("start", coordinator.status());
  }
  auto client = client::MeshClient::Connect((*coordinator)->address());
  if (!client.ok() || !(*client)->cluster().GetVersion().ok()) {
    Fail("connect", client.status());
  }
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "plan") == 0) {
      Plan(**client);
    } else if (std::strcmp(argv[i], "search") == 0) {
      Search(**client);
    } else if (std::strcmp(argv[i], "reshard") == 0) {
      Reshard(**client);
    } else {
      Fail(argv[i], absl::InvalidArgumentError("the arguments are plan, search and reshard"));
    }
  }
  client->reset();
  (*coordinator)->Drain(absl::Now() + absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) { return shardmesh::Main(argc, argv); }
