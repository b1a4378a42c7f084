// Connects the remote client to a server in this process.
#include "client/local/local_questions.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "client/remote/coordinator_connection.h"
#include "server/question_server.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

absl::StatusOr<std::unique_ptr<LocalQuestions>> LocalQuestions::Start(
    const MeshClientOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<server::QuestionServer> server,
                             server::QuestionServer::Start());
  std::unique_ptr<MeshClient> client =
      MeshClient::Over(CoordinatorConnection::InProcess(
                           server->MakeChannel(), {options.await_coordinator, options.on_wait}),
                       options);
  return std::unique_ptr<LocalQuestions>(new LocalQuestions(std::move(server), std::move(client)));
}

LocalQuestions::LocalQuestions(std::unique_ptr<server::QuestionServer> server,
                               std::unique_ptr<MeshClient> client)
    : server_(std::move(server)), client_(std::move(client)) {}
LocalQuestions::~LocalQuestions() = default;

absl::Status ExplainMissingDefinition(const absl::Status& status) {
  if (!absl::IsNotFound(status) || ReasonOf(status) != Reason::kNotFound) return status;
  const std::string text(ToStd(status.message()));
  const auto is_about = [&text](std::string_view kind) {
    return text.find(StrCat("there is no ", kind, " named")) != std::string::npos;
  };
  const std::string_view advice = is_about("mesh")   ? "give --mesh fsdp=2,tp=2, a YAML file, or "
                                  : is_about("tree") ? "give --tree FILE, or "
                                                     : "give a YAML file, or ";
  absl::Status explained = absl::NotFoundError(
      StrCat(text, "; there is no cluster, so no stored definition: ", advice, "--address"));
  status.ForEachPayload([&explained](absl::string_view type, const absl::Cord& payload) {
    explained.SetPayload(type, payload);
  });
  return explained;
}

}  // namespace shardmesh::client
