// The file of contexts: named clusters with their addresses and certificates.
#ifndef SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_
#define SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_

#include <functional>
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
  // Adds the context, or replaces the one with its name.
  void Set(Context context);
  // NOT_FOUND with the nearest name. If the current context is removed, there is none.
  absl::Status Remove(std::string_view name);
};

// A name has 1 to 64 letters, digits, `.`, `_` and `-`. INVALID_ARGUMENT for others.
absl::Status CheckContextName(std::string_view name);

// $SHARDMESH_CONFIG, else $XDG_CONFIG_HOME/shardmesh/config.yaml, else
// $HOME/.config/shardmesh/config.yaml; empty if there is no home directory.
std::string ContextFilePath();

// Without a file there are no contexts. INVALID_ARGUMENT (BAD_FILE), with the line if it is known,
// for a file that has another format; unknown keys are refused.
absl::StatusOr<ContextFile> ReadContexts(const std::string& path);
// Reads the file, calls `change`, and replaces the file by the result, which it returns. The file
// is readable only by its owner; its folder is created. The new file is complete, or the old one
// stays. An error of `change` is returned, and the file stays as it is.
//
// Holds the lock of the file `path`.lock, so that no change of another process is lost.
// FAILED_PRECONDITION if another process holds it for 10 seconds.
absl::StatusOr<ContextFile> UpdateContexts(
    const std::string& path, const std::function<absl::Status(ContextFile* file)>& change);
// The contents of the file.
Json ContextsTree(const ContextFile& file);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_
