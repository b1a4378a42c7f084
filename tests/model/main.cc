// The program model: random clients against a real cluster, and the same under faults.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "rpc/flags.h"
#include "tests/model/runs.h"

namespace shardmesh::model {
namespace {

int Main(int argc, char** argv) {
  RunOptions options;
  options.binary_folder = SHARDMESH_BINARY_DIR;
  int64_t seed = 0;
  int64_t seconds = 20;
  int64_t minimise = 90;
  std::string run = "random";
  rpc::FlagSet flags("model",
                     "Issues calls against a real cluster and checks each answer with a model.");
  flags.AddText("run", "random|faults|network|failpoints|replicas|sweep|verbs", "what to do", &run);
  flags.AddInt("seed", "of all that is drawn; 0 takes the clock's", 0,
               std::numeric_limits<int64_t>::max(), &seed);
  flags.AddInt("seconds", "how long random calls go on", 1, 1'000'000, &seconds);
  flags.AddInt("clients", "how many make random calls at once", 1, 64, &options.clients);
  flags.AddText("replay", "FILE", "makes the calls that a failed run has written", &options.replay);
  flags.AddInt("minimise-seconds", "how long to look for a shorter sequence; 0 for not at all", 0,
               100'000, &minimise);
  flags.AddInt("kills", "of faults and replicas: how many", 1, 1'000'000, &options.kills);
  flags.AddText("only", "TEXT", "of failpoints, sizes and verbs: those whose name has this text",
                &options.only);
  flags.AddText("verb", "NAME", "of --run=verb, which --run=verbs starts: what to do",
                &options.verb);
  flags.AddText("address", "HOST:PORT", "of --run=verb: the coordinator", &options.address);
  flags.AddText("files", "FOLDER", "of --run=verb: where the workers read and write",
                &options.files);
  flags.AddText("binaries", "FOLDER", "where the programs lie", &options.binary_folder);
  flags.AddSwitch("long", "everything: all actions of all failpoints, 1,000 kills of each kind",
                  &options.is_long);
  if (const std::optional<int> code = flags.ParseMain(argc, argv); code.has_value()) return *code;
  options.time = absl::Seconds(seconds);
  options.minimise = absl::Seconds(minimise);
  options.seed = seed == 0 ? static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()))
                           : static_cast<uint64_t>(seed);
  if (run == "random") return RunRandom(options);
  if (run == "faults") return RunFaults(options);
  if (run == "network") return RunNetwork(options);
  if (run == "failpoints") return RunFailpoints(options);
  if (run == "replicas") return RunReplicas(options);
  if (run == "sweep") return RunSweep(options);
  if (run == "verbs") return RunVerbs(options);
  if (run == "verb") return RunVerb(options);
  std::fprintf(stderr,
               "model: --run is \"%s\"; it is random, faults, network, failpoints, replicas, sweep "
               "or verbs\n",
               run.c_str());
  return 2;
}

}  // namespace
}  // namespace shardmesh::model

int main(int argc, char** argv) { return shardmesh::model::Main(argc, argv); }
