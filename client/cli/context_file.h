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
  std::string current;  // name of the current context; empty: none is current
  std::vector<Context> contexts;

  // Returns the context of that name. NOT_FOUND if there is none; the message has the nearest name.
  absl::StatusOr<Context> Find(std::string_view name) const;
  // Adds the context, or replaces the context of that name.
  void Set(Context context);
  // Removes the context of that name. If this was the current context, no context is current
  // afterwards. NOT_FOUND if no context has the name; the message has the nearest name.
  absl::Status Remove(std::string_view name);
};

// A name has 1 to 64 letters, digits, `.`, `_` and `-`. INVALID_ARGUMENT for other names.
absl::Status CheckContextName(std::string_view name);

// The file's path: $SHARDMESH_CONFIG, else $XDG_CONFIG_HOME/shardmesh/config.yaml, else
// $HOME/.config/shardmesh/config.yaml; empty if there is no home directory.
std::string ContextFilePath();

// Reads the file. A missing file has no contexts. INVALID_ARGUMENT (BAD_FILE) for a file that has
// another format or unknown keys; the message has the line if it is known.
absl::StatusOr<ContextFile> ReadContexts(const std::string& path);
// Reads the file, calls `change` with the contexts, and replaces the file by the changed contexts.
// Returns the changed contexts. Creates the folder if needed; only the owner can read the file. The
// replacement is atomic. If `change` returns an error, returns that error and leaves the file
// unchanged.
//
// During the call, locks the file `path`.lock, so that no change of another process is lost.
// FAILED_PRECONDITION if another process holds the lock for 10 seconds.
absl::StatusOr<ContextFile> UpdateContexts(
    const std::string& path, const std::function<absl::Status(ContextFile* file)>& change);
// Returns the contexts in the format of the file.
Json ContextsTree(const ContextFile& file);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_CONTEXT_FILE_H_
