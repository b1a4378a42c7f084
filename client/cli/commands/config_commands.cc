// The commands config set-context, use-context, get-contexts, current-context, delete-context and
// view.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/context_file.h"
#include "client/cli/table.h"
#include "process/host_port.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Returns an absolute path, which names the same file in every working directory. Returns an empty
// path unchanged.
std::string Absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

// Creates a context, or changes an existing one. If an option is not given, the context keeps its
// value for that option.
absl::Status RunSetContext(const Invocation& invocation, const std::string& name) {
  if (const absl::Status named = CheckContextName(name); !named.ok()) {
    return WrongUse(ToStd(named.message()));
  }
  Context context;
  SHARDMESH_ASSIGN_OR_RETURN(
      const ContextFile file,
      UpdateContexts(ContextFilePath(), [&](ContextFile* changed) -> absl::Status {
        context = changed->Find(name).value_or(Context{.name = name, .address = {}});
        if (invocation.has_address) context.address = invocation.address;
        if (!invocation.given_tls.empty()) {
          SHARDMESH_RETURN_IF_ERROR(rpc::CheckComplete(invocation.given_tls));
          context.tls = {.certificate = Absolute(invocation.given_tls.certificate),
                         .private_key = Absolute(invocation.given_tls.private_key),
                         .authorities = Absolute(invocation.given_tls.authorities)};
        }
        if (context.address.empty()) {
          return WrongUse(StrCat("a new context \"", name, "\" needs its --address"));
        }
        changed->Set(context);
        if (changed->contexts.size() == 1) changed->current = name;
        return absl::OkStatus();
      }));
  if (invocation.json) {
    invocation.Print(ContextsTree(file));
  } else {
    std::cout << "Context " << name << ": " << context.address
              << (context.tls.empty() ? "" : ", mutual TLS")
              << (file.current == name ? "; it is the current one\n" : "\n");
  }
  return absl::OkStatus();
}

absl::Status RunUseContext(const Invocation& invocation, const std::string& name) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const ContextFile file,
      UpdateContexts(ContextFilePath(), [&](ContextFile* changed) -> absl::Status {
        SHARDMESH_RETURN_IF_ERROR(changed->Find(name).status());
        changed->current = name;
        return absl::OkStatus();
      }));
  if (invocation.json) {
    invocation.Print(ContextsTree(file));
  } else {
    std::cout << "The current context is " << name << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunDeleteContext(const Invocation& invocation, const std::string& name) {
  bool was_current = false;
  SHARDMESH_ASSIGN_OR_RETURN(const ContextFile file,
                             UpdateContexts(ContextFilePath(), [&](ContextFile* changed) {
                               was_current = changed->current == name;
                               return changed->Remove(name);
                             }));
  if (invocation.json) {
    invocation.Print(ContextsTree(file));
  } else {
    std::cout << "Removed the context " << name
              << (was_current ? "; there is no current one now\n" : "\n");
  }
  return absl::OkStatus();
}

absl::Status RunGetContexts(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const ContextFile file, ReadContexts(ContextFilePath()));
  Json list = Json::array();
  std::vector<std::string> names;
  Table table({{"current"},
               {"name"},
               {"address"},
               {"tls"},
               {"certificate", Table::Align::kLeft, Table::Shown::kWide}});
  for (const Context& context : file.contexts) {
    const bool is_current = context.name == file.current;
    names.push_back(context.name);
    list.push_back({{"name", context.name},
                    {"address", context.address},
                    {"tls", !context.tls.empty()},
                    {"current", is_current}});
    table.AddRow({is_current ? "*" : "", context.name, context.address,
                  context.tls.empty() ? "no" : "mutual", context.tls.certificate});
  }
  if (invocation.json) {
    invocation.Print(list);
  } else if (invocation.names()) {
    PrintNames(names);
  } else {
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunCurrentContext(const Invocation& invocation) {
  const std::string path = ContextFilePath();
  SHARDMESH_ASSIGN_OR_RETURN(const ContextFile file, ReadContexts(path));
  if (file.current.empty()) {
    return WithReason(
        absl::NotFoundError(StrCat(
            path, " names no current context; choose one with `shardmesh config use-context`")),
        Reason::kNotFound);
  }
  if (invocation.json) {
    invocation.Print(Json{{"name", file.current}});
  } else {
    std::cout << file.current << "\n";
  }
  return absl::OkStatus();
}

// Prints the context file. The form `table` also means YAML here, because the file itself is YAML.
absl::Status RunView(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const ContextFile file, ReadContexts(ContextFilePath()));
  PrintTree(ContextsTree(file), invocation.json ? invocation.output : OutputForm::kYaml);
  return absl::OkStatus();
}

}  // namespace

void AddConfigCommands(CommandLine* line) {
  CLI::App* const config =
      line->AddGroup("config", "Named clusters with their addresses and certificates: contexts");
  const auto add = [&](const std::string& name, const std::string& help, auto run) {
    auto context = std::make_shared<std::string>();
    line->AddCommand(
            name, help, [context, run](const Invocation& i) { return run(i, *context); }, config)
        ->add_option("NAME", *context, "name of the context")
        ->required();
  };
  add("set-context",
      "Make or change a context: --address, and with mutual TLS the three --tls options",
      RunSetContext);
  add("use-context", "Make a context the current one", RunUseContext);
  line->PrintsNames(line->AddCommand("get-contexts", "List the contexts", RunGetContexts, config));
  line->PrintsNames(line->AddCommand("current-context", "Show the name of the current context",
                                     RunCurrentContext, config));
  add("delete-context", "Remove a context", RunDeleteContext);
  line->AddCommand("view", "Show the file of contexts", RunView, config);
}

}  // namespace shardmesh::client
