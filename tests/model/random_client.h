// RandomClient: one client that issues every call of the contract, and a model of what each answer
// must be.
#ifndef SHARDMESH_TESTS_MODEL_RANDOM_CLIENT_H_
#define SHARDMESH_TESTS_MODEL_RANDOM_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/save_service.pb.h"
#include "tests/model/contract_caller.h"
#include "tests/model/dice.h"
#include "tests/model/tensors.h"

namespace shardmesh::model {

// One call; its arguments are drawn from `seed`, given the client's state.
struct Op {
  int client = 0;
  std::string method;
  uint64_t seed = 0;
};

// Names shared by all clients, to which each may put tensors. A reader of a name must find a
// complete tensor that some client put there. Thread-safe.
class SharedNames {
 public:
  // A number that no other tensor has.
  float NewValue();
  bool IsValue(float value) const;

 private:
  mutable absl::Mutex mutex_;
  int64_t values_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The names, definitions and sessions of one client are not shared, so its model knows every answer
// about them exactly. It knows less about shared ones. Not thread-safe.
class RandomClient {
 public:
  // `files`: the folder of files that the workers read and write (Cluster::files).
  RandomClient(int number, const std::string& address, const std::string& files,
               SharedNames* shared);
  ~RandomClient();

  // Methods that have no caller here: a test of completeness expects none.
  static std::vector<std::string> MethodsWithoutCaller();
  // How often the random run takes each method, relative to others.
  static int WeightOf(const std::string& method);

  // Makes the call and checks the answer. Returns an error if the answer is wrong.
  absl::Status Run(const Op& op);
  // Deletes names, definitions and files, and closes sessions.
  absl::Status Finish();

 private:
  struct Held {
    Content content;
    v1::PartitionSpec spec;
    std::string mesh_id = "default";
    std::set<int> pins;  // slots of sessions
    std::set<std::string> names;
    std::set<std::pair<std::string, int64_t>> versions;
    int64_t replicas = 1;  // that it wants
    // The shared names make it unknown whether it is still there.
    bool is_known = true;
    // False: its content is unknown.
    bool bytes_known = true;
  };
  struct Name {
    std::string array_id;
    int64_t version = 0;
  };
  struct PutItem {
    std::string name;
    int64_t expected_version = 0;
    std::string array_id;
    std::string mesh_id;
    Content content;
    v1::PartitionSpec spec;
    int64_t replicas = 1;
  };
  enum class TransferState { kRunning, kDone, kEnded };
  struct Transfer {
    std::string id;
    int slot = 0;
    std::string session;
    TransferState state = TransferState::kRunning;
    // Its tiles were sent, or the workers read them.
    bool is_sent = false;
    std::string source_path;  // of the file that the workers read; empty: the client sends
    std::vector<PutItem> items;
    v1::BeginPutResponse begun;
    v1::CommitTransferRequest commit;
    v1::CommitTransferResponse result;
  };
  struct Version {
    int64_t version = 0;
    int64_t revision = 0;
    v1::EntryValue value;
  };
  // A save that succeeded.
  struct Save {
    std::string operation_id;
    v1::WaitSaveResponse result;
    absl::Time ended;
  };
  using Handler = absl::Status (RandomClient::*)(Dice&);
  static const std::map<std::string, Handler>& Handlers();

  // The callers, one for each method.
  absl::Status OpenSession(Dice& dice);
  absl::Status RenewSession(Dice& dice);
  absl::Status CloseSession(Dice& dice);
  absl::Status ListSessions(Dice& dice);
  absl::Status CreateEntry(Dice& dice);
  absl::Status GetEntry(Dice& dice);
  absl::Status ListEntries(Dice& dice);
  absl::Status ListEntryVersions(Dice& dice);
  absl::Status UpdateEntry(Dice& dice);
  absl::Status DeleteEntry(Dice& dice);
  absl::Status Watch(Dice& dice);
  absl::Status BeginPut(Dice& dice);
  absl::Status FindContent(Dice& dice);
  absl::Status CommitTransfer(Dice& dice);
  // Waits until its time is over, which ends the transfer.
  absl::Status CommitWithoutTiles(const v1::CommitTransferRequest& request, Transfer* transfer);
  absl::Status AbortTransfer(Dice& dice);
  absl::Status BeginGet(Dice& dice);
  absl::Status DescribeArray(Dice& dice);
  absl::Status ListArrays(Dice& dice);
  absl::Status MoveName(Dice& dice);
  absl::Status DeleteName(Dice& dice);
  absl::Status ReleaseArrays(Dice& dice);
  absl::Status Reshard(Dice& dice);
  absl::Status BeginSave(Dice& dice);
  absl::Status WaitSave(Dice& dice);
  absl::Status PutTiles(Dice& dice);
  absl::Status GetTiles(Dice& dice);
  absl::Status Identify(Dice& dice);
  absl::Status GetOperation(Dice& dice);
  absl::Status ListOperations(Dice& dice);
  absl::Status WatchCluster(Dice& dice);
  absl::Status WatchOperation(Dice& dice);
  absl::Status CancelOperation(Dice& dice);
  absl::Status ReportGet(Dice& dice);
  absl::Status ForceCancelOperation(Dice& dice);
  absl::Status Compile(Dice& dice);
  absl::Status Execute(Dice& dice);
  absl::Status ExecuteStream(Dice& dice);
  absl::Status Linear(Dice& dice);
  absl::Status Matmul(Dice& dice);
  absl::Status Collective(Dice& dice);
  absl::Status GetVersion(Dice& dice);
  absl::Status GetStatus(Dice& dice);
  absl::Status ListFlightRecords(Dice& dice);
  absl::Status Diagnose(Dice& dice);
  absl::Status ListLinks(Dice& dice);
  absl::Status Snapshot(Dice& dice);
  absl::Status Attach(Dice& dice);
  absl::Status Exchange(Dice& dice);
  // Asks any question.
  absl::Status Ask(const std::string& method, Dice& dice);
  // Bytes that are no message, an empty message, a call that is cancelled at once.
  absl::Status Junk(const std::string& method, Dice& dice);

  std::string NewRequestId(Dice& dice);
  absl::StatusOr<std::string> Session(int slot, Dice& dice);
  void SessionEnded(int slot);
  const Caller& CallerOf(const std::string& method, Dice& dice);
  absl::Status FindWorkers();

  std::string OwnName(Dice& dice) const;
  std::string EntryName(Dice& dice) const;
  // Returns the id of an array that exists, or may have existed.
  std::string AnyArrayId(Dice& dice) const;
  std::string AnyTransferId(Dice& dice);
  Transfer* FindTransfer(const std::string& id);
  // Whether it must be there; nullptr: it must not.
  Held* FindHeld(const std::string& array_id);
  void PointName(const std::string& name, const std::string& array_id, int64_t version);
  void DropName(const std::string& name);
  void ReleaseIfUnheld(const std::string& array_id);
  absl::Status ReadAndCompare(const std::string& array_id, int slot, Dice& dice);
  // Whether the answer about an array says that it wants as many replicas as it must.
  static bool HasWish(const v1::Array& array, int64_t replicas);
  // Waits until an array with two replicas has the second one, unless it has no room.
  absl::Status AwaitReplicas(const std::string& array_id) const;
  // Reads a random slice, or is refused one that is none.
  absl::Status ReadSlice(Dice& dice);

  // Draws how the tensor lies: by a spec, by semantic axes, by a preset or by the header's rules.
  void DrawLayout(Dice& dice, size_t rank, bool has_rules, v1::PutTensor* tensor) const;
  // Makes the workers read the put's tensors; with `is_bad` from a file that they must refuse.
  absl::Status DrawSource(Dice& dice, bool is_bad, Transfer* transfer, v1::BeginPutHeader* header,
                          v1::PutTensors* tensors);
  // Checks that an array lies as the resolver answers for the same axes or preset.
  absl::Status CheckLayout(const v1::PutTensor& tensor, const std::string& mesh,
                           const v1::ArrayDescriptor& array) const;

  absl::Status CallReshard(const v1::ReshardRequest& request, v1::ReshardResponse* whole) const;
  // Refuses a reshard that must not work.
  absl::Status ReshardBadly(v1::ReshardRequest request, Dice& dice);
  // Changes the model as the moved arrays say. `names`: the names before the call.
  absl::Status TakeResharded(const v1::ReshardRequest& request, const v1::ReshardResponse& whole,
                             int slot);
  absl::Status TakeMoved(const v1::ReshardRequest& request, const v1::ReshardedArray& moved,
                         int slot);

  // The folder of this client's checkpoints.
  std::string SaveFolder() const;
  std::optional<absl::Status> SaveBadly(v1::BeginSaveRequest request, Dice& dice);
  // Checks the steps that are complete, and one of them bit for bit.
  absl::Status CheckSaved(Dice& dice) const;

  absl::StatusOr<v1::Operand> AnyMatrix(Dice& dice, Content* content);
  template <typename Request, typename Response>
  absl::Status RunStep(const std::string& method, Request request, const Content& expected,
                       bool must_work, bool bytes_known, Dice& dice);
  absl::Status TakeOutput(const v1::StepOutput& output, const Content& expected, bool bytes_known,
                          int slot, const std::string& name);

  const int number_;
  const std::string address_;
  const std::string files_;
  SharedNames* const shared_;
  const Caller coordinator_;
  std::vector<std::string> worker_identities_;
  std::vector<std::unique_ptr<Caller>> workers_;
  std::vector<std::unique_ptr<Caller>> exchanges_;
  std::string cluster_id_;
  int64_t requests_ = 0;
  std::string sessions_[2];
  std::string session_requests_[2];
  std::map<std::string, Held> arrays_;
  std::vector<std::string> gone_;
  std::map<std::string, Name> names_;
  std::vector<Transfer> transfers_;
  std::map<std::pair<int, std::string>, std::vector<Version>> entries_;
  std::map<int, int64_t> deleted_versions_;  // the highest of a deleted entry, by kind
  std::pair<int, std::string> last_entry_;
  int64_t last_entry_revision_ = 0;
  std::map<std::string, std::pair<absl::Status, std::vector<std::string>>> answers_;
  std::set<std::string> seen_;             // shared names that exist
  std::map<int64_t, SavedTensors> saved_;  // complete checkpoints, by step
  std::optional<Save> last_save_;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_RANDOM_CLIENT_H_
