// Each call at, just below and just above its limits; nothing crashes, wedges or loses a worker.
#include <google/protobuf/text_format.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/contract_caller.h"
#include "tests/model/process_cluster.h"
#include "tests/model/questions.h"
#include "tests/model/runs.h"
#include "tests/model/tensors.h"

namespace shardmesh::model {
namespace {

constexpr int64_t kControlBytes = int64_t{4} << 20;
constexpr int64_t kDataBytes = (int64_t{1} << 20) + (int64_t{64} << 10);
constexpr int64_t kLiteralBytes = int64_t{1} << 20;

absl::Status Violation(std::string_view what) { return absl::InternalError(ToAbsl(what)); }

// Returns a message of the same meaning with exactly this many bytes: the padding is a field that
// no version knows.
std::string PaddedTo(std::string bytes, int64_t size_bytes) {
  // The tag of field 1,000,000 as bytes, and a length in four bytes.
  const std::string tag = {'\x82', '\xa4', '\xe8', '\x03'};
  const int64_t rest = size_bytes - std::ssize(bytes) - std::ssize(tag) - 4;
  if (rest < 0) return bytes;
  std::string length;
  for (int i = 0; i < 4; ++i) {
    length.push_back(static_cast<char>(((rest >> (7 * i)) & 0x7f) | (i < 3 ? 0x80 : 0)));
  }
  return bytes + tag + length + std::string(static_cast<size_t>(rest), 'p');
}

class Sweep {
 public:
  explicit Sweep(Cluster* cluster) : cluster_(cluster), caller_(cluster->address()) {}

  absl::Status Begin() {
    SHARDMESH_RETURN_IF_ERROR(GetStatus(&status_));
    v1::OpenSessionRequest open;
    v1::OpenSessionResponse opened;
    open.set_request_id("sweep");
    open.mutable_ttl()->set_seconds(3600);
    SHARDMESH_RETURN_IF_ERROR(caller_.Call("SessionService.OpenSession", open, &opened));
    session_ = opened.session_id();
    return absl::OkStatus();
  }

  // All pages.
  absl::Status GetStatus(v1::GetStatusResponse* status) {
    v1::GetStatusRequest request;
    do {
      v1::GetStatusResponse page;
      SHARDMESH_RETURN_IF_ERROR(caller_.Call("ClusterService.GetStatus", request, &page));
      request.set_page_token(page.next_page_token());
      status->MergeFrom(page);
    } while (!request.page_token().empty());
    return absl::OkStatus();
  }

  // Checks that no process ended, no worker was lost, and the coordinator answers.
  absl::Status CheckUnharmed() {
    for (int i = 0; i < cluster_->size(); ++i) {
      if (const auto end = cluster_->Ended(i); end.has_value()) {
        return Violation(StrCat(cluster_->NameOf(i), " ", *end, "; its log ends:\n",
                                client::LastLines(cluster_->Log(i), 12)));
      }
    }
    v1::GetStatusResponse status;
    SHARDMESH_RETURN_IF_ERROR(GetStatus(&status));
    for (int i = 0; i < status_.workers_size(); ++i) {
      const v1::WorkerStatus& before = status_.workers(i);
      const v1::WorkerStatus* now = nullptr;
      for (const v1::WorkerStatus& worker : status.workers()) {
        if (worker.identity() == before.identity()) now = &worker;
      }
      if (now == nullptr || now->state() != v1::WORKER_STATE_READY) {
        return Violation(
            StrCat(before.identity(), " is lost: ", now == nullptr ? "" : now->ShortDebugString()));
      }
    }
    for (int i = 1; i < cluster_->size(); ++i) {
      if (absl::StrContains(cluster_->Log(i), "cannot attach, will retry") !=
          absl::StrContains(first_logs_[static_cast<size_t>(i)], "cannot attach, will retry")) {
        return Violation(StrCat(cluster_->NameOf(i), " lost its stream:\n",
                                client::LastLines(cluster_->Log(i), 6)));
      }
    }
    return absl::OkStatus();
  }
  void RememberLogs() {
    for (int i = 0; i < cluster_->size(); ++i) first_logs_.push_back(cluster_->Log(i));
  }

  // Each call with a message of the most bytes that its server takes, and with one byte more.
  absl::Status Messages(const std::string& name) {
    const MethodDescriptor* method = FindMethod(name);
    const bool is_worker = absl::StartsWith(name, "TileService.");
    if (absl::StartsWith(name, "ExchangeService.")) return absl::OkStatus();  // frames: see fuzzing
    const Caller worker(status_.workers(0).endpoints(0).address());
    const Caller& caller = is_worker ? worker : caller_;
    const int64_t limit = is_worker ? kDataBytes : kControlBytes;
    std::string bytes;
    const auto questions = ValidQuestions(name);
    if (!questions.empty()) {
      const std::unique_ptr<Message> message(google::protobuf::MessageFactory::generated_factory()
                                                 ->GetPrototype(method->input_type())
                                                 ->New());
      google::protobuf::TextFormat::ParseFromString(questions[0][0], message.get());
      bytes = message->SerializeAsString();
    }
    for (const int64_t size : {limit - 1, limit, limit + 1, 2 * limit}) {
      std::vector<std::string> answers;
      Caller::Limits limits;
      // A watch gives its first answer at once, and a second one only when something changes.
      limits.max_answers = 1;
      limits.timeout = absl::Seconds(30);
      const absl::Status status =
          caller.CallBytes(method, {PaddedTo(bytes, size)}, &answers, limits);
      const bool is_over = size > limit;
      const bool holds = is_over ? absl::IsResourceExhausted(status)
                                 : !absl::IsResourceExhausted(status) &&
                                       !absl::IsUnavailable(status) && !absl::IsUnknown(status);
      // A server that refuses a stream's first message may have ended it before it read the size.
      if (!holds && !(is_over && !status.ok() && !absl::IsUnavailable(status))) {
        return Violation(StrCat(name, " of ", size, " bytes answered ", status.ToString()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Want(const std::string& method, const Message& request, Message* answer,
                    bool must_work) {
    const absl::Status status = caller_.Call(method, request, answer, absl::Seconds(120));
    const bool refused = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
    if (must_work ? status.ok() : refused) return absl::OkStatus();
    return Violation(StrCat(method, " of ", request.ByteSizeLong(), " bytes answered ",
                            status.ToString(), "; wanted ", must_work ? "OK" : "a refusal"));
  }

  absl::Status Literals() {
    for (const int64_t extra : {-1, 0, 1}) {
      v1::MatmulRequest request;
      v1::MatmulResponse response;
      request.set_request_id(StrCat("literal-", extra));
      request.set_session_id(session_);
      const int64_t columns = kLiteralBytes / 4 + extra;
      for (v1::Operand* operand : {request.mutable_lhs(), request.mutable_rhs()}) {
        v1::Literal& literal = *operand->mutable_literal();
        const bool is_left = operand == request.mutable_lhs();
        literal.set_dtype(v1::DTYPE_F32);
        literal.add_shape(is_left ? 1 : columns);
        literal.add_shape(is_left ? columns : 1);
        literal.set_data(std::string(static_cast<size_t>(columns * 4), '\0'));
      }
      SHARDMESH_RETURN_IF_ERROR(Want("ComputeService.Matmul", request, &response, extra <= 0));
    }
    return absl::OkStatus();
  }

  // A step whose request just fits, and whose order to the workers is longer than it.
  absl::Status LargeSteps() {
    for (const int64_t below : {200'000, 1'000, 60, 20, 0}) {
      v1::ExecuteRequest request;
      v1::ExecuteResponse response;
      request.set_request_id(StrCat("large-", below));
      request.set_session_id(session_);
      v1::Program& program = *request.mutable_program();
      program.set_operand_count(4);
      program.add_ops()->mutable_matmul()->set_rhs(1);
      program.add_outputs(4);
      int64_t left = kControlBytes - below;
      for (int i = 0; i < 4; ++i) {
        v1::Literal& literal = *request.add_operands()->mutable_literal();
        const int64_t size = i < 2 ? 16 : std::min<int64_t>(kLiteralBytes, left / 2);
        literal.set_dtype(i < 2 ? v1::DTYPE_F32 : v1::DTYPE_U8);
        literal.add_shape(i < 2 ? 2 : size);
        if (i < 2) literal.add_shape(2);
        literal.set_data(std::string(static_cast<size_t>(size), '\0'));
      }
      // Two more operands fill the rest of the message.
      for (int i = 0; i < 2; ++i) {
        left = kControlBytes - below - static_cast<int64_t>(request.ByteSizeLong()) - 40;
        const int64_t size = std::min<int64_t>(kLiteralBytes, left);
        program.set_operand_count(program.operand_count() + 1);
        v1::Literal& literal = *request.add_operands()->mutable_literal();
        literal.set_dtype(v1::DTYPE_U8);
        literal.add_shape(size);
        literal.set_data(std::string(static_cast<size_t>(size), '\0'));
      }
      program.set_outputs(0, program.operand_count());
      const absl::Status status =
          caller_.Call("ComputeService.Execute", request, &response, absl::Seconds(120));
      if (!status.ok() && !absl::IsInvalidArgument(status) && !absl::IsResourceExhausted(status)) {
        return Violation(
            StrCat("Execute of ", request.ByteSizeLong(), " bytes answered ", status.ToString()));
      }
      SHARDMESH_RETURN_IF_ERROR(CheckUnharmed());
    }
    return absl::OkStatus();
  }

  absl::Status Releases() {
    for (const int count : {9'999, 10'000, 10'001}) {
      v1::ReleaseArraysRequest request;
      v1::ReleaseArraysResponse response;
      request.set_session_id(session_);
      for (int i = 0; i < count; ++i) request.add_array_ids("a");
      SHARDMESH_RETURN_IF_ERROR(
          Want("ArrayService.ReleaseArrays", request, &response, count <= 10'000));
    }
    return absl::OkStatus();
  }

  // The longest names, and as many arrays as a page may have.
  absl::Status LongLists() {
    constexpr int kArrays = 1'000;
    v1::BeginPutRequest header;
    header.mutable_header()->set_request_id("lists");
    header.mutable_header()->set_session_id(session_);
    std::vector<std::string> requests = {header.SerializeAsString()};
    std::vector<Content> contents;
    for (int i = 0; i < kArrays;) {
      v1::BeginPutRequest part;
      for (int n = 0; n < 500 && i < kArrays; ++n, ++i) {
        v1::PutTensor& tensor = *part.mutable_tensors()->add_tensors();
        std::string name = StrCat("sweep/", i, "/");
        name += std::string(1024 - name.size(), 'n');
        tensor.set_name(name);
        tensor.set_dtype(v1::DTYPE_F32);
        tensor.add_shape(2);
        tensor.mutable_spec();
        contents.push_back(MakeContent(Dtype::kF32, {2}, static_cast<uint64_t>(i)));
      }
      requests.push_back(part.SerializeAsString());
    }
    std::vector<std::string> answers;
    absl::Status status =
        caller_.CallBytes(FindMethod("ArrayService.BeginPut"), requests, &answers);
    if (!status.ok()) return Violation(StrCat("BeginPut answered ", status.ToString()));
    v1::BeginPutResponse begun;
    for (const std::string& answer : answers) {
      v1::BeginPutResponse part;
      part.ParseFromString(answer);
      begun.MergeFrom(part);
    }
    SHARDMESH_RETURN_IF_ERROR(SendTiles(begun, contents, absl::Seconds(120)));
    v1::CommitTransferRequest commit;
    v1::CommitTransferResponse committed;
    commit.set_request_id("lists-commit");
    commit.set_transfer_id(begun.transfer_id());
    SetIfThere(&commit, "session_id", session_);
    SHARDMESH_RETURN_IF_ERROR(Want("ArrayService.CommitTransfer", commit, &committed, true));
    int listed = 0;
    v1::ListArraysRequest list;
    list.set_prefix("sweep/");
    list.set_page_size(1'000);
    for (;;) {
      v1::ListArraysResponse page;
      SHARDMESH_RETURN_IF_ERROR(Want("ArrayService.ListArrays", list, &page, true));
      listed += page.arrays_size();
      if (page.next_page_token().empty()) break;
      list.set_page_token(page.next_page_token());
    }
    if (listed != kArrays) return Violation(StrCat("ListArrays has ", listed, " of ", kArrays));
    return absl::OkStatus();
  }

  // Meshes for planning, of the most devices, and more of them than an answer can show at once.
  absl::Status ManyMeshes() {
    int meshes = 0;
    const auto create = [&](const std::string& name, int64_t size) {
      v1::CreateEntryRequest request;
      v1::CreateEntryResponse response;
      request.set_request_id(StrCat("mesh-", ++meshes));
      request.set_name(name);
      v1::MeshAxis& axis = *request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
      axis.set_name("dp");
      axis.set_size(size);
      const absl::Status status = caller_.Call("CatalogService.CreateEntry", request, &response);
      // A limit of meshes may refuse some.
      if (status.ok() || absl::IsResourceExhausted(status)) return absl::OkStatus();
      return Violation(StrCat("CreateEntry of a mesh of ", size, " answered ", status.ToString()));
    };
    for (const int64_t size : {int64_t{4'194'304}, (int64_t{1} << 31) - 1, int64_t{1} << 31}) {
      SHARDMESH_RETURN_IF_ERROR(create(StrCat("huge-", size), size));
      SHARDMESH_RETURN_IF_ERROR(CheckUnharmed());
    }
    const std::string long_name(240, 'm');
    for (int i = 0; i < 1'100; ++i) {
      SHARDMESH_RETURN_IF_ERROR(create(StrCat(long_name, i), 1));
      if (i % 100 == 99) SHARDMESH_RETURN_IF_ERROR(CheckUnharmed());
    }
    return CheckUnharmed();
  }

 private:
  Cluster* const cluster_;
  const Caller caller_;
  v1::GetStatusResponse status_;
  std::string session_;
  std::vector<std::string> first_logs_;
};

}  // namespace

int RunSweep(const RunOptions& options) {
  Cluster::Options cluster_options;
  cluster_options.binary_folder = options.binary_folder;
  auto cluster = Cluster::Start(cluster_options);
  if (!cluster.ok()) {
    std::printf("FAILED: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  Sweep sweep(cluster->get());
  std::vector<std::pair<std::string, std::function<absl::Status()>>> cases;
  for (const auto& [name, method] : AllMethods()) {
    cases.emplace_back(StrCat("message of ", name),
                       [&sweep, name = name] { return sweep.Messages(name); });
  }
  cases.emplace_back("literals", [&] { return sweep.Literals(); });
  cases.emplace_back("releases", [&] { return sweep.Releases(); });
  cases.emplace_back("long lists", [&] { return sweep.LongLists(); });
  cases.emplace_back("large steps", [&] { return sweep.LargeSteps(); });
  cases.emplace_back("many meshes", [&] { return sweep.ManyMeshes(); });
  absl::Status begun = sweep.Begin();
  sweep.RememberLogs();
  int failures = 0;
  int tried = 0;
  for (const auto& [name, run] : cases) {
    if (!options.only.empty() && !absl::StrContains(name, options.only)) continue;
    ++tried;
    absl::Status status = begun.ok() ? run() : begun;
    const absl::Status unharmed = sweep.CheckUnharmed();
    if (status.ok() || !unharmed.ok()) status.Update(unharmed);
    if (status.ok()) continue;
    ++failures;
    std::printf("FAILED: %s: %s\n", name.c_str(), std::string(status.message()).c_str());
    if (!unharmed.ok()) {
      std::printf("%s\n", unharmed.ToString().c_str());
      break;  // later cases would fail for the same reason
    }
  }
  std::printf("%d of %d sizes passed\n", tried - failures, tried);
  return failures == 0 ? 0 : 1;
}

}  // namespace shardmesh::model
