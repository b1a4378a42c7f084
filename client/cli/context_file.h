// The file of contexts: named clusters with their addresses and certificates.
#ifndef SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_
#define SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/output_form.h"
#include "rpc/tls/certificate.h"

namespace shardmesh::client {

struct Context {
  std::string name;
  std::string address;
  rpc::TlsFiles tls = {};  // empty: plaintext
};

struct ContextFile {
  std::string current;  // empty: none
  std::vector<Context> contexts;

  // NOT_FOUND with the nearest name.
  absl::StatusOr<Context> Find(std::string_view name) const;
  // Adds the context, or replaces that of its name.
  void Set(Context context);
  // NOT_FOUND with the nearest name. A current context that is removed leaves none.
  absl::Status Remove(std::string_view name);
};

// A name has 1 to 64 letters, digits, `.`, `_` and `-`. INVALID_ARGUMENT for others.
absl::Status CheckContextName(std::string_view name);

// $SHARDMESH_CONFIG, else $XDG_CONFIG_HOME/shardmesh/config.yaml, else
// $HOME/.config/shardmesh/config.yaml; empty where there is no home either.
std::string ContextFilePath();

// Without a file there are no contexts. INVALID_ARGUMENT (BAD_FILE), with the line where it is
// known, for a file that is no file of contexts; unknown keys are refused.
absl::StatusOr<ContextFile> ReadContexts(const std::string& path);
// Replaces the file, which only its owner may read, and makes its folder. The file is complete or
// as it was.
absl::Status WriteContexts(const std::string& path, const ContextFile& file);
// What the file holds.
Json ContextsTree(const ContextFile& file);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_
