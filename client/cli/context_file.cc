// The file of contexts: named clusters with their addresses and certificates.
#include "client/cli/context_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "process/host_port.h"
#include "process/lock_file.h"
#include "rpc/call.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kCurrentKey[] = "current-context";
constexpr char kContextsKey[] = "contexts";
constexpr size_t kMaxNameBytes = 64;
// Largest file that is read; thousands of contexts take less.
constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
// How long a change waits for the file's lock. A change takes milliseconds. But if the process that
// holds the lock is stopped (SIGSTOP), other processes must not wait for ever.
constexpr absl::Duration kLockTimeout = absl::Seconds(10);

absl::Status BadFile(const std::string& path, const YAML::Mark& mark, std::string_view why) {
  return InvalidArgument(
      Reason::kBadFile,
      StrCat(path, mark.is_null() ? std::string() : StrCat(":", mark.line + 1), ": ", why));
}

// Reads the texts of a YAML mapping into the targets in `keys`. BAD_FILE if the mapping has another
// key.
absl::Status ReadTexts(const std::string& path, const YAML::Node& node,
                       const std::vector<std::pair<std::string_view, std::string*>>& keys) {
  if (!node.IsMap()) return BadFile(path, node.Mark(), "a context is a mapping of keys to texts");
  for (const auto& item : node) {
    const std::string key = item.first.Scalar();
    const auto found = std::find_if(keys.begin(), keys.end(),
                                    [&](const auto& known) { return known.first == key; });
    if (found == keys.end()) {
      std::vector<std::string_view> names;
      for (const auto& known : keys) names.push_back(known.first);
      return BadFile(path, item.first.Mark(),
                     StrCat("unknown key \"", key, "\" of a context", DidYouMean(key, names)));
    }
    if (!item.second.IsScalar()) {
      return BadFile(path, item.second.Mark(), StrCat("\"", key, "\" is no text"));
    }
    *found->second = item.second.Scalar();
  }
  return absl::OkStatus();
}

absl::Status ReadContext(const std::string& path, const YAML::Node& name, const YAML::Node& value,
                         ContextFile* file) {
  Context context{.name = name.Scalar(), .address = {}};
  if (const absl::Status named = CheckContextName(context.name); !named.ok()) {
    return BadFile(path, name.Mark(), ToStd(named.message()));
  }
  if (std::any_of(file->contexts.begin(), file->contexts.end(),
                  [&](const Context& other) { return other.name == context.name; })) {
    return BadFile(path, name.Mark(), StrCat("two contexts have the name \"", context.name, "\""));
  }
  SHARDMESH_RETURN_IF_ERROR(ReadTexts(path, value,
                                      {{"address", &context.address},
                                       {"tls-cert", &context.tls.certificate},
                                       {"tls-key", &context.tls.private_key},
                                       {"tls-ca", &context.tls.authorities}}));
  for (const absl::Status& checked :
       {CheckAddress(context.address), rpc::CheckComplete(context.tls)}) {
    if (!checked.ok()) {
      return BadFile(path, value.Mark(),
                     StrCat("context \"", context.name, "\": ", ToStd(checked.message())));
    }
  }
  file->contexts.push_back(std::move(context));
  return absl::OkStatus();
}

absl::StatusOr<ContextFile> ReadNode(const std::string& path, const YAML::Node& root) {
  ContextFile file;
  if (root.IsNull()) return file;
  if (!root.IsMap()) {
    return BadFile(path, root.Mark(),
                   StrCat("is no mapping with ", kContextsKey, " and ", kCurrentKey));
  }
  for (const auto& item : root) {
    const std::string key = item.first.Scalar();
    if (key == kCurrentKey && item.second.IsScalar()) {
      file.current = item.second.Scalar();
    } else if (key == kContextsKey && item.second.IsMap()) {
      for (const auto& context : item.second) {
        SHARDMESH_RETURN_IF_ERROR(ReadContext(path, context.first, context.second, &file));
      }
    } else if (key == kCurrentKey || key == kContextsKey) {
      return BadFile(path, item.second.Mark(),
                     StrCat("\"", key, "\" is no ", key == kCurrentKey ? "text" : "mapping"));
    } else {
      return BadFile(
          path, item.first.Mark(),
          StrCat("unknown key \"", key, "\"",
                 DidYouMean(key, std::vector<std::string_view>{kCurrentKey, kContextsKey})));
    }
  }
  return file;
}

// Returns the text of the file. BAD_FILE if the file is a folder, a device or a pipe, is too large,
// or cannot be read.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return BadFile(path, YAML::Mark::null_mark(), "is a folder, not a file of contexts");
  }
  const absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (!file.ok()) return InvalidArgument(Reason::kBadFile, ToStd(file.status().message()));
  if (file->size_bytes > kMaxFileBytes) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(path, ": ", file->size_bytes, " bytes are more than the ",
                                  kMaxFileBytes, " of a file of contexts"),
                           {{fact::kFile, path}});
  }
  std::string text(static_cast<size_t>(file->size_bytes), '\0');
  const absl::Status read = ReadExactly(*file, path, 0, absl::MakeSpan(text.data(), text.size()));
  if (!read.ok()) return InvalidArgument(Reason::kBadFile, ToStd(read.message()));
  return text;
}

}  // namespace

absl::StatusOr<Context> ContextFile::Find(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const Context& context : contexts) {
    if (context.name == name) return context;
    names.push_back(context.name);
  }
  return WithReason(absl::NotFoundError(
                        StrCat("there is no context \"", name, "\"", DidYouMean(name, names),
                               names.empty() ? "; `shardmesh config set-context` makes one" : "")),
                    Reason::kNotFound);
}

void ContextFile::Set(Context context) {
  for (Context& known : contexts) {
    if (known.name == context.name) {
      known = std::move(context);
      return;
    }
  }
  contexts.push_back(std::move(context));
}

absl::Status ContextFile::Remove(std::string_view name) {
  SHARDMESH_RETURN_IF_ERROR(Find(name).status());
  if (current == name) current.clear();
  std::erase_if(contexts, [&](const Context& context) { return context.name == name; });
  return absl::OkStatus();
}

absl::Status CheckContextName(std::string_view name) {
  const bool is_name = !name.empty() && name.size() <= kMaxNameBytes &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                         return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                       });
  if (is_name) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("\"", name, "\" cannot name a context: a name has 1 to ",
                                           kMaxNameBytes,
                                           " letters, digits, \".\", \"_\" and \"-\""));
}

std::string ContextFilePath() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string path = variable("SHARDMESH_CONFIG"); !path.empty()) return path;
  constexpr char kFile[] = "/shardmesh/config.yaml";
  if (const std::string folder = variable("XDG_CONFIG_HOME"); !folder.empty()) {
    return folder + kFile;
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : StrCat(home, "/.config", kFile);
}

absl::StatusOr<ContextFile> ReadContexts(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return ContextFile();
  SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  try {
    return ReadNode(path, YAML::Load(text));
  } catch (const YAML::Exception& exception) {
    return BadFile(path, exception.mark, StrCat("is no YAML: ", exception.msg));
  }
}

absl::StatusOr<ContextFile> UpdateContexts(
    const std::string& path, const std::function<absl::Status(ContextFile* file)>& change) {
  if (path.empty()) {
    return absl::FailedPreconditionError(
        "no place for the file of contexts: set SHARDMESH_CONFIG, XDG_CONFIG_HOME or HOME");
  }
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path();
      !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return FileError("make", folder.string(), error.value());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const FileLock lock,
                             TakeLock(path + ".lock", {.timeout = kLockTimeout, .mode = 0600}));
  if (!lock.held.valid()) {
    return absl::FailedPreconditionError(StrCat("process ", lock.holder, " has been changing ",
                                                path, " for ", absl::FormatDuration(kLockTimeout),
                                                "; try again when it has ended"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(ContextFile file, ReadContexts(path));
  SHARDMESH_RETURN_IF_ERROR(change(&file));
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter writer, AtomicFileWriter::Create(path, 0600));
  const std::string text = ToYaml(ContextsTree(file));
  SHARDMESH_RETURN_IF_ERROR(writer.Append(text));
  SHARDMESH_RETURN_IF_ERROR(writer.Finish());
  return file;
}

Json ContextsTree(const ContextFile& file) {
  Json tree = Json::object();
  if (!file.current.empty()) tree[kCurrentKey] = file.current;
  Json contexts = Json::object();
  for (const Context& context : file.contexts) {
    Json& entry = contexts[context.name] = {{"address", context.address}};
    if (context.tls.empty()) continue;
    entry["tls-cert"] = context.tls.certificate;
    entry["tls-key"] = context.tls.private_key;
    entry["tls-ca"] = context.tls.authorities;
  }
  tree[kContextsKey] = std::move(contexts);
  return tree;
}

}  // namespace shardmesh::client
