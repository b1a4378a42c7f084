// The program shardmesh-coordinator.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#ifdef __GLIBC__  // which the headers above define
#include <malloc.h>
#endif

#include "absl/time/clock.h"
#include "rpc/credentials.h"
#include "rpc/flags.h"
#include "rpc/listener.h"
#include "rpc/log.h"
#include "rpc/mutex_checks.h"
#include "rpc/signal.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "tensor/collective_choice.h"

namespace shardmesh::server {
namespace {

// Keeps what a large tree took for the next one: memory that goes back to the system after each
// call is cleared by the kernel page by page when it is taken again, a tenth of such a call's time.
// At most about 64 MiB in each of 8 arenas stay.
void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 8);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  rpc::RaiseDescriptorLimit();
  rpc::SkipMutexChecks();
  rpc::StopSignal stop;
  CoordinatorOptions options;
  options.lock_timeout = absl::Seconds(10);
  std::string mesh;
  std::string algorithms;
  rpc::TlsFiles tls;
  rpc::LogOptions log;
  absl::Duration grace = absl::Seconds(10);
  rpc::FlagSet flags("shardmesh-coordinator",
                     "Answers which device holds which piece of which tensor, and directs the "
                     "workers that hold them.");
  flags.AddText("listen", "HOST:PORT", "where to serve; port 0 takes a free one",
                &options.listen_address);
  flags.AddText("http-listen", "HOST:PORT", "where to serve metrics; empty for nowhere",
                &options.http_address);
  flags.AddText("data-dir", "FOLDER", "where to keep state; empty keeps it in memory",
                &options.data_dir);
  flags.AddDuration("lock-timeout",
                    "how long to wait for another coordinator that has the data folder",
                    &options.lock_timeout);
  flags.AddText("mesh", "AXIS=SIZE,...", "defines the mesh \"default\" if there is none yet",
                &mesh);
  flags.AddInt("min-sharding-size",
               "the least elements of a tensor that is sharded, for rules whose min_size is null",
               0, std::numeric_limits<int64_t>::max(), &options.min_sharding_size);
  flags.AddText(
      "collective-algorithms", "KIND=ALGORITHM,...",
      "algorithms to use where calls leave the choice, such as all-reduce=halving; of the "
      "kinds not named, the one that is predicted to be fastest",
      &algorithms);
  flags.AddDuration("heartbeat-interval", "how often workers show that they live",
                    &options.membership.heartbeat_interval);
  flags.AddDuration("lost-after", "how long a worker may be silent until it counts as lost",
                    &options.membership.lost_after);
  flags.AddDuration("return-grace",
                    "how long workers that were lost, or have not attached since the start, are "
                    "expected back: calls that need them are told to try again",
                    &options.return_grace);
  flags.AddDuration("unnamed-grace",
                    "how long arrays without names are kept, after a start, for who held them",
                    &options.unnamed_grace);
  flags.AddDuration("grace", "how long running calls may go on when stopping", &grace);
  flags.AddTls(&tls, &options.insecure);
  flags.AddSwitch("http-plaintext", "serve metrics in plaintext, beyond this host and with TLS too",
                  &options.http_plaintext);
  flags.AddSwitch("insecure", "allow plaintext beyond this host; not with TLS", &options.insecure);
  flags.AddLog(&log);
  flags.AddFailpoints();
  if (const std::optional<int> code = flags.ParseMain(argc, argv); code.has_value()) {
    return *code;
  }
  rpc::ConfigureLog(log);
  const auto wrong_use = [](const char* flag, const std::string& value, const absl::Status& why) {
    std::fprintf(stderr, "shardmesh-coordinator: %s %s: %s\n", flag, value.c_str(),
                 std::string(why.message()).c_str());
    return rpc::FlagSet::kWrongUse;
  };
  if (!mesh.empty()) {
    absl::StatusOr<Mesh> parsed = Mesh::Parse(mesh);
    if (!parsed.ok()) {
      return wrong_use("--mesh", mesh, parsed.status());
    }
    options.mesh = *std::move(parsed);
  }
  absl::StatusOr<PreferredAlgorithms> preferred = ParsePreferredAlgorithms(algorithms);
  if (!preferred.ok()) {
    return wrong_use("--collective-algorithms", algorithms, preferred.status());
  }
  options.preferred_algorithms = *std::move(preferred);

  absl::StatusOr<rpc::Credentials> credentials = rpc::Credentials::FromFiles(tls);
  if (!credentials.ok()) {
    rpc::LogError("cannot start", {{"error", credentials.status()}});
    return rpc::FlagSet::kFailed;
  }
  options.credentials = *std::move(credentials);
  const auto server = CoordinatorServer::Start(std::move(options));
  if (!server.ok()) {
    rpc::LogError("cannot start", {{"error", server.status()}});
    return rpc::FlagSet::kFailed;
  }
  std::printf("shardmesh-coordinator listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const int signal = stop.Wait();
  rpc::LogInfo("stopping", {{"signal", signal}, {"grace", grace}});
  (*server)->Drain(absl::Now() + grace);
  return rpc::FlagSet::kDone;
}

}  // namespace
}  // namespace shardmesh::server

int main(int argc, char** argv) { return shardmesh::server::Main(argc, argv); }
