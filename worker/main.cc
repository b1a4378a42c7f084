// The program shardmesh-worker: serves one device of a mesh until it gets a signal to stop.
#include <cstdio>
#include <memory>
#include <optional>

#include "process/allocator.h"
#include "process/descriptor_limit.h"
#include "process/log.h"
#include "process/mutex_checks.h"
#include "process/signal.h"
#include "rpc/flags.h"
#include "rpc/listener.h"
#include "rpc/poll_strategy.h"
#include "rpc/tls/credentials.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/kernel/host_share.h"
#include "worker/worker_server.h"

namespace shardmesh::worker {
namespace {

// How often the main thread checks whether the coordinator has refused this worker permanently.
constexpr absl::Duration kFailurePollInterval = absl::Milliseconds(100);

int Main(int argc, const char* const* argv) {
  KeepStandardDescriptors();
  rpc::RaiseDescriptorLimit();
  KeepMessageMemory();
  SkipMutexChecks();
  rpc::PollOwnConnections();
  IgnoreFileSizeSignal();
  StopSignal stop;  // made before any thread starts, so that all threads inherit its signal mask
  WorkerOptions options;
  rpc::TlsFiles tls;
  LogOptions log;
  absl::Duration drain_timeout = absl::Seconds(30);
  int64_t quarantine_disk = -1;
  int64_t quarantine_memory = -1;
  bool no_binding = false;
  rpc::FlagSet flags("shardmesh-worker", "Serves one device of a mesh: its tiles, and its steps.");
  flags.AddAddress("coordinator", "the coordinator to attach to", &options.coordinator);
  flags.AddHostPort("listen", "where to serve; port 0 takes a free one", &options.listen);
  flags.AddInt("exchange-port",
               "where to serve the other workers, on the host of --listen, and on those of "
               "--advertise; 0 takes a free one",
               0, 65'535, &options.exchange_port);
  flags.AddHostPorts("advertise",
                     "where others reach this worker, best first; port 0 stands for the bound one",
                     &options.advertise);
  flags.AddText("identity", "NAME", "stable name of this worker, by default the host's",
                &options.identity);
  flags.AddBytes("memory", "limit of the memory for tiles", &options.memory_bytes,
                 rpc::kMinWorkerMemoryBytes);
  int64_t cache = -1;
  flags.AddBytes(
      "cache-bytes",
      "most memory that tiles of released arrays may take: they are kept for later loads "
      "of the same content, and make room as soon as memory is needed; 0 for none, by "
      "default half of --memory",
      &cache);
  int64_t rpc_memory = -1;
  flags.AddBytes(
      "rpc-memory",
      "gRPC memory that calls of clients may take before connections are refused and streams are "
      "cancelled; at least 16MiB, by default a quarter of --memory, 256MiB to 4GiB",
      &rpc_memory, kMinRpcMemoryBytes);
  flags.AddText("data-dir", "DIR", "keep tiles on disk too, in this folder", &options.data_dir);
  flags.AddFolders("write-root",
                   "a folder below which this worker may write checkpoints (`shardmesh save`); may "
                   "be repeated; by default it writes none",
                   &options.write_roots);
  flags.AddFolders("read-root",
                   "a folder below which this worker may read the files of puts; may be repeated; "
                   "by default it reads no files",
                   &options.read_roots);
  flags.AddBytes("quarantine-disk",
                 "bytes of tiles kept on disk in quarantine, by default 64 GiB and at most a "
                 "quarter of the file system of --data-dir",
                 &quarantine_disk);
  flags.AddBytes("quarantine-memory",
                 "bytes of tiles kept in memory in quarantine, by default an eighth of --memory",
                 &quarantine_memory);
  flags.AddDuration("quarantine-age", "how long tiles are kept in quarantine",
                    &options.quarantine.age);
  flags.AddBytes("scrub-rate",
                 "bytes a second at which tiles of --data-dir are compared with their checksums in "
                 "the background; 0 for never",
                 &options.scrub_bytes_per_second);
  flags.AddDuration("scrub-interval", "shortest time between the beginnings of two such passes",
                    &options.scrub_interval);
  flags.AddInt(
      "threads",
      "threads for kernels; 0 for the cores and the quota that this process may use, divided "
      "by the parts of --host-part",
      0, 1024, &options.threads);
  flags.AddParsed("host-part", "INDEX/COUNT",
                  "this worker's index and the number of workers on this host: it uses only its "
                  "part of the cores, and is bound to that part if it has at least 2 (default 0/1)",
                  [&options](std::string_view value) -> absl::Status {
                    SHARDMESH_ASSIGN_OR_RETURN(options.part, HostPart::Parse(std::string(value)));
                    return absl::OkStatus();
                  });
  flags.AddSwitch("no-binding", "do not bind this process to its part of the cores", &no_binding);
  flags.AddHostPort("http-listen",
                    "serve Prometheus metrics here: over HTTP, with TLS over HTTPS; empty for "
                    "nowhere",
                    &options.metrics_listen, /*may_be_empty=*/true);
  flags.AddParsed(
      "transport", "auto|stream|shm",
      "how data goes between workers: auto takes shared memory where they are on one host "
      "(default auto)",
      [&options](std::string_view value) -> absl::Status {
        const auto known = TransportFromName(std::string(value));
        if (!known.has_value()) {
          return InvalidArgument(Reason::kBadField,
                                 StrCat("\"", value, "\" is not auto, stream or shm"),
                                 {{fact::kField, "--transport"}, {fact::kValue, value}});
        }
        options.transport = *known;
        return absl::OkStatus();
      });
  flags.AddSwitch("frame-checksums",
                  "check the bytes that come from other workers also where the kernel or TLS "
                  "protects them: on one host, and in encrypted streams",
                  &options.frame_checksums);
  flags.AddTls(&tls, &options.insecure);
  flags.AddSwitch("http-plaintext",
                  "serve metrics in plaintext, also to other hosts and also with TLS",
                  &options.http_plaintext);
  flags.AddSwitch("insecure", "allow plaintext connections from other hosts; not with TLS",
                  &options.insecure);
  flags.AddDuration("drain-timeout",
                    "how long running steps and streams may go on when the worker stops",
                    &drain_timeout);
  flags.AddLog(&log);
  flags.AddFailpoints();
  if (const std::optional<int> code = flags.ParseMain(argc, argv); code.has_value()) {
    return *code;
  }
  ConfigureLog(log);
  options.cache_bytes = cache < 0 ? options.memory_bytes / 2 : cache;
  if (rpc_memory >= 0) options.rpc_memory_bytes = rpc_memory;
  if (quarantine_disk >= 0) options.quarantine.disk_bytes = quarantine_disk;
  options.quarantine.memory_bytes =
      quarantine_memory < 0 ? options.memory_bytes / 8 : quarantine_memory;
  if (!no_binding) {
    // Bind now: threads that start later inherit the binding. The thread that waits for signals
    // needs no core of its own.
    const absl::StatusOr<bool> bound = BindToPart(options.part);
    if (!bound.ok()) {
      LogWarning("not bound to its part of the cores", {{"error", bound.status()}});
    } else if (*bound) {
      options.part.is_bound = true;  // the process may now use only the cores of its part
    }
  }

  if (const absl::Status enough = CheckDescriptorLimit(); !enough.ok()) {
    LogError("cannot start", {{"error", enough}});
    return rpc::FlagSet::kFailed;
  }
  absl::StatusOr<rpc::Credentials> credentials = rpc::Credentials::FromFiles(tls);
  if (!credentials.ok()) {
    LogError("cannot start", {{"error", credentials.status()}});
    return rpc::FlagSet::kFailed;
  }
  options.credentials = *std::move(credentials);
  absl::StatusOr<std::unique_ptr<WorkerServer>> server = WorkerServer::Start(std::move(options));
  if (!server.ok()) {
    LogError("cannot start", {{"error", server.status()}});
    return rpc::FlagSet::kFailed;
  }
  std::printf("shardmesh-worker %s listening on %s\n", (*server)->identity().c_str(),
              (*server)->address().c_str());
  std::fflush(stdout);
  std::optional<int> signal;
  while (!signal.has_value() && !(*server)->failure().has_value()) {
    signal = stop.WaitFor(kFailurePollInterval);
  }
  if (!signal.has_value()) {
    return rpc::FlagSet::kFailed;  // the log has the reason
  }
  LogInfo("draining", {{"signal", *signal}});
  (*server)->Drain(absl::Now() + drain_timeout);
  return rpc::FlagSet::kDone;
}

}  // namespace
}  // namespace shardmesh::worker

int main(int argc, char** argv) { return shardmesh::worker::Main(argc, argv); }
