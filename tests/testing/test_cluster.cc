// The real programs as processes, for tests.
#include "tests/testing/test_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "sharding/mesh.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"

namespace shardmesh::test {
namespace {

// For a busy machine, on which sanitizers run too.
constexpr absl::Duration kStartTimeout = absl::Seconds(60);
// How long a process may take to stop before it is killed.
constexpr absl::Duration kGrace = absl::Seconds(10);

}  // namespace

std::string MakeTestFolder(const std::string& name) {
  std::string pattern = StrCat(::testing::TempDir(), "shardmesh-", name, "-XXXXXX");
  if (mkdtemp(pattern.data()) == nullptr) {
    ADD_FAILURE() << "cannot make a folder like " << pattern;
  }
  return pattern;
}

std::ostream& operator<<(std::ostream& out, const CommandResult& result) {
  return out << "exit code " << result.exit_code << " after " << absl::FormatDuration(result.time)
             << "\nprinted: " << result.out << "\nsaid: " << result.err;
}

CommandResult RunShardmesh(const std::vector<std::string>& arguments,
                           const std::string& runtime_folder, absl::Duration timeout) {
  return RunProgram("shardmesh", arguments, runtime_folder, timeout);
}

CommandResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const std::string& runtime_folder, absl::Duration timeout) {
  CommandResult result;
  const std::string out = MakeTestFolder("command");
  // The shell parts the two outputs, and passes its arguments on as they are.
  client::ProcessOptions options;
  options.command = {
      "/bin/sh", "-c",
      StrCat("export XDG_RUNTIME_DIR=\"$1\" XDG_CONFIG_HOME=\"$1\"; shift; exec \"$0\" \"$@\" > ",
             out, "/out 2> ", out, "/err"),
      StrCat(SHARDMESH_BINARY_DIR, "/", program), runtime_folder};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.log_path = out + "/log";
  const absl::Time start = absl::Now();
  const absl::StatusOr<client::ChildProcess> process = client::ChildProcess::Start(options);
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    return result;
  }
  if (!client::WaitUntilGone(process->id(), start + timeout)) {
    client::SendSignal(process->id(), SIGKILL).IgnoreError();
  }
  int state = 0;
  waitpid(process->id().pid, &state, 0);
  result.time = absl::Now() - start;
  result.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  result.out = client::ReadLog(out + "/out");
  result.err = client::ReadLog(out + "/err");
  std::filesystem::remove_all(out);
  return result;
}

absl::StatusOr<std::string> PutFloats(client::MeshClient& client, const std::string& name,
                                      const Shape& shape, absl::Span<const float> elements,
                                      const PartitionSpec& spec, const std::string& mesh) {
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Create(Dtype::kF32, shape,
                                                {reinterpret_cast<const char*>(elements.data()),
                                                 elements.size() * sizeof(float)}));
  const client::PutTensor tensor{.name = name, .view = view, .spec = spec, .cut_points = {}};
  SHARDMESH_ASSIGN_OR_RETURN(const client::PutResult result,
                             client.arrays().PutTensors({&tensor, 1}, {.mesh = mesh}));
  return result.arrays[0].descriptor.array_id;
}

std::vector<float> FloatsOf(absl::Span<const char> bytes) {
  std::vector<float> elements(bytes.size() / sizeof(float));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(float));
  return elements;
}

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& flags)
    : folder_(MakeTestFolder("process")) {
  client::ProcessOptions options;
  options.command = {StrCat(SHARDMESH_BINARY_DIR "/", program)};
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  options.log_path = folder_ + "/log";
  options.parent_end_signal = SIGKILL;
  process_ = std::make_unique<client::ChildProcess>(*client::ChildProcess::Start(options));
}

ServerProcess::~ServerProcess() {
  client::SendSignal(process_->id(), SIGKILL).IgnoreError();
  client::WaitUntilGone(process_->id(), absl::Now() + absl::Seconds(10));
  process_->Ended();
  std::filesystem::remove_all(folder_);
}

std::string ServerProcess::AwaitEnd() {
  client::WaitUntilGone(process_->id(), absl::Now() + absl::Seconds(30));
  return process_->Ended().value_or("it still runs");
}

bool ServerProcess::AwaitInLog(const std::string& text) const {
  return Eventually([&] { return absl::StrContains(Log(), text); });
}

absl::StatusOr<std::unique_ptr<TestCluster>> TestCluster::Start(const Options& options) {
  std::unique_ptr<TestCluster> cluster(new TestCluster());
  cluster->folder_ = MakeTestFolder("cluster");
  client::LocalClusterOptions local;
  local.name = "test";
  local.folder = cluster->folder_ + "/shardmesh/test";
  local.binary_folder =
      options.binary_folder.empty() ? SHARDMESH_BINARY_DIR : options.binary_folder;
  SHARDMESH_ASSIGN_OR_RETURN(local.mesh, Mesh::Parse(options.mesh));
  local.coordinator_flags = options.coordinator_flags;
  local.worker_flags = options.worker_flags;
  if (options.durable) {
    local.data_folder = cluster->folder_ + "/data";
  }
  client::MeshClientOptions client_options;
  if (!options.tls_folder.empty()) {
    cluster->tls_folder_ = local.tls_folder = options.tls_folder;
    client::CertificateFolderOptions certificates{
        .folder = options.tls_folder, .workers = {}, .hosts = {}, .only_missing = true};
    for (int64_t i = 0; i < local.mesh.size(); ++i) {
      certificates.workers.push_back(client::LocalWorkerIdentity(i));
    }
    SHARDMESH_RETURN_IF_ERROR(client::WriteCertificates(certificates).status());
    SHARDMESH_ASSIGN_OR_RETURN(
        client_options.credentials,
        rpc::Credentials::FromFiles(client::ClientTlsFiles(options.tls_folder)));
  }
  local.parent_end_signal = SIGKILL;
  std::filesystem::create_directory(cluster->folder_ + "/shardmesh");
  SHARDMESH_ASSIGN_OR_RETURN(cluster->cluster_, client::LocalCluster::Start(
                                                    std::move(local), absl::Now() + kStartTimeout));
  SHARDMESH_RETURN_IF_ERROR(cluster->WaitUntilHealthy());
  SHARDMESH_ASSIGN_OR_RETURN(cluster->client_,
                             client::MeshClient::Connect(cluster->address(), client_options));
  return cluster;
}

TestCluster::~TestCluster() {
  client_.reset();
  if (cluster_ != nullptr) {
    cluster_->Stop(kGrace);
    for (const client::EndedProcess& ended : cluster_->CollectEnded()) {
      for (const int crash : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
        EXPECT_FALSE(absl::StrContains(ended.how, StrCat("signal ", crash, " ")))
            << ended.identity << " " << ended.how;
      }
    }
  }
  cluster_.reset();
  std::filesystem::remove_all(folder_);
}

absl::Status TestCluster::WaitUntilHealthy() {
  return cluster_->WaitUntilHealthy(absl::Now() + kStartTimeout);
}

CommandResult TestCluster::Run(std::vector<std::string> arguments) const {
  arguments.push_back("--address=" + address());
  if (!tls_folder_.empty()) {
    const rpc::TlsFiles files = client::ClientTlsFiles(tls_folder_);
    arguments.insert(arguments.end(),
                     {"--tls-cert=" + files.certificate, "--tls-key=" + files.private_key,
                      "--tls-ca=" + files.authorities});
  }
  return RunShardmesh(arguments, folder_);
}

std::vector<std::string> TestCluster::metrics_addresses() const {
  std::vector<std::string> addresses;
  for (const client::RecordedProcess& process : cluster_->record().processes) {
    addresses.push_back(process.metrics_address);
  }
  return addresses;
}

absl::Status TestCluster::WaitUntilGone(const std::string& identity, absl::Time deadline) const {
  for (const client::RecordedProcess& process : cluster_->record().processes) {
    if (process.identity == identity && !client::WaitUntilGone(process.id, deadline)) {
      return absl::DeadlineExceededError(StrCat(identity, " does not end"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TestCluster::AwaitEnd(const std::string& identity,
                                                  absl::Duration timeout) {
  SHARDMESH_RETURN_IF_ERROR(WaitUntilGone(identity, absl::Now() + timeout));
  for (const client::EndedProcess& ended : cluster_->CollectEnded()) {
    if (ended.identity == identity) return ended.how;
  }
  return absl::InternalError(StrCat(identity, " ended and nobody knows how"));
}

absl::StatusOr<std::string> TestCluster::Terminate(const std::string& identity,
                                                   absl::Duration timeout) {
  SHARDMESH_RETURN_IF_ERROR(cluster_->Signal(identity, SIGTERM));
  return AwaitEnd(identity, timeout);
}

absl::Status TestCluster::Kill(const std::string& identity) {
  SHARDMESH_RETURN_IF_ERROR(cluster_->Signal(identity, SIGKILL));
  return WaitUntilGone(identity, absl::Now() + absl::Seconds(10));
}

absl::Status TestCluster::Restart(const std::string& identity) {
  return cluster_->Restart(identity, absl::Now() + kStartTimeout);
}

}  // namespace shardmesh::test
