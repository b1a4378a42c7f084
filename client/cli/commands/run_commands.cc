// Command run: a graph from a file, on arrays and small files.
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/step_report.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "client/mesh_client.h"
#include "client/remote/graph_codec.h"
#include "client/types/graph_bindings.h"
#include "process/file.h"
#include "program/graph/graph.h"
#include "program/graph/symbolic_program.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

// More than the largest graph has: 8,192 constants of 4 KiB, each byte written as `\ooo`.
constexpr int64_t kMaxGraphFileBytes = int64_t{256} << 20;

using TextByName = std::map<std::string, std::string, std::less<>>;

struct RunFlags {
  std::string path;
  std::vector<std::string> operands;  // NAME=ARRAY or NAME=FILE.npy
  std::optional<std::string> prefix;
  std::vector<std::string> files;  // OUTPUT=FILE.npy
  std::vector<std::string> names;  // OUTPUT=NAME
  std::string mesh_id;
  bool plan_only = false;
  InspectFlags inspect;
};

// Splits texts such as `x=activations` at the first `=`. `flag` gave them.
absl::StatusOr<TextByName> SplitBindings(const std::vector<std::string>& texts,
                                         std::string_view flag, std::string_view form) {
  TextByName bindings;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return WrongUse(StrCat(flag, ": \"", text, "\" is not ", form));
    }
    const std::string name = text.substr(0, equals);
    if (!bindings.emplace(name, text.substr(equals + 1)).second) {
      return WrongUse(StrCat(flag, ": \"", name, "\" is given twice"));
    }
  }
  return bindings;
}

// Checks that no two outputs get the same file or name.
absl::Status CheckDistinct(const TextByName& texts, std::string_view flag) {
  std::map<std::string_view, std::string_view> outputs;
  for (const auto& [output, text] : texts) {
    const auto [other, is_new] = outputs.emplace(text, output);
    if (is_new) continue;
    return WrongUse(StrCat(flag, ": the outputs \"", other->second, "\" and \"", output,
                           "\" both get \"", text, "\"; give each another one"));
  }
  return absl::OkStatus();
}

// The bindings that the flags give, before anything is read.
struct RunTexts {
  TextByName operands;
  TextByName files;
  TextByName names;
};

absl::StatusOr<RunTexts> TextsOf(const RunFlags& flags) {
  RunTexts texts;
  SHARDMESH_ASSIGN_OR_RETURN(
      texts.operands, SplitBindings(flags.operands, "--operand", "NAME=ARRAY or NAME=FILE.npy"));
  SHARDMESH_ASSIGN_OR_RETURN(texts.files, SplitBindings(flags.files, "--out", "OUTPUT=FILE.npy"));
  SHARDMESH_ASSIGN_OR_RETURN(texts.names, SplitBindings(flags.names, "--as", "OUTPUT=NAME"));
  SHARDMESH_RETURN_IF_ERROR(CheckDistinct(texts.files, "--out"));
  SHARDMESH_RETURN_IF_ERROR(CheckDistinct(texts.names, "--as"));
  for (const auto& [output, path] : texts.files) {
    if (const auto parsed = ParseNpyPath(path, "run"); !parsed.ok()) {
      return WrongUse(StrCat("--out: ", ToStd(parsed.status().message())));
    }
  }
  for (const auto& [output, name] : texts.names) {
    if (const std::string error = RefuseNameWithAt(name); !error.empty()) {
      return WrongUse(StrCat("--as: ", error));
    }
  }
  return texts;
}

absl::StatusOr<Graph> ReadGraph(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  if (file.size_bytes > kMaxGraphFileBytes) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat(path, " has ", file.size_bytes, " bytes; a graph has at most ",
                                  kMaxGraphFileBytes, "; give larger tensors as operands"),
                           {{fact::kHave, file.size_bytes}, {fact::kLimit, kMaxGraphFileBytes}});
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text)));
  absl::StatusOr<Graph> graph = rpc::ParseGraphText(text);
  return graph.ok() ? std::move(graph) : WithContext(graph.status(), path);
}

// Checks the names of operands and outputs before files are put onto the mesh.
absl::Status CheckNames(const Graph& graph, const RunTexts& texts) {
  for (const auto& [name, text] : texts.operands) {
    SHARDMESH_RETURN_IF_ERROR(WithContext(FindOperand(graph, name).status(), "--operand"));
  }
  for (const auto& [name, text] : texts.files) {
    SHARDMESH_RETURN_IF_ERROR(WithContext(shardmesh::FindOutput(graph, name).status(), "--out"));
  }
  for (const auto& [name, text] : texts.names) {
    SHARDMESH_RETURN_IF_ERROR(WithContext(shardmesh::FindOutput(graph, name).status(), "--as"));
  }
  return absl::OkStatus();
}

std::string TextOf(const TextByName& texts, const std::string& name) {
  const auto found = texts.find(name);
  return found == texts.end() ? "" : found->second;
}

Json RunJson(const Graph& graph, const StepResult& result, const RunTexts& texts) {
  Json outputs = Json::array();
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const ArrayDescriptor& array = result.outputs[i].array.descriptor;
    const std::string& name = graph.outputs[i].name;
    Json output = {{"output", name},
                   {"array_id", array.array_id},
                   {"dtype", std::string(DtypeName(array.dtype))},
                   {"shape", ShapeJson(array.shape)},
                   {"spec", SpecJson(array.spec)}};
    if (texts.names.contains(name)) output["name"] = TextOf(texts.names, name);
    if (texts.files.contains(name)) output["path"] = TextOf(texts.files, name);
    outputs.push_back(std::move(output));
  }
  Json json = {{"outputs", std::move(outputs)}, {"sequence", result.sequence}};
  if (graph.program.symbol.has_value()) json["symbol"] = SymbolJson(*graph.program.symbol);
  json.update(TimingsJson(result.timings));
  return json;
}

void PrintRun(const Graph& graph, const StepResult& result, const RunTexts& texts) {
  Table table({{"output"}, {"type"}, {"shape"}, {"spec"}, {"name"}, {"file"}});
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const ArrayDescriptor& array = result.outputs[i].array.descriptor;
    const std::string& name = graph.outputs[i].name;
    const std::string kept = TextOf(texts.names, name);
    const std::string file = TextOf(texts.files, name);
    table.AddRow({name, std::string(DtypeName(array.dtype)), FormatShape(array.shape),
                  FormatSpec(array.spec), kept.empty() ? "-" : kept, file.empty() ? "-" : file});
  }
  if (!result.outputs.empty()) table.Print();
  if (graph.program.symbol.has_value()) {
    std::cout << "The graph takes " << SymbolicDimensionText(*graph.program.symbol) << "\n";
  }
  for (const StateUpdate& update : graph.program.updates) {
    std::cout << "Updated " << graph.operands[update.operand].name << "\n";
  }
  PrintTimings(result);
}

absl::Status ShowGraphPlan(const Invocation& invocation, MeshClient* client, const Graph& graph,
                           const ExecuteCall& call) {
  SHARDMESH_ASSIGN_OR_RETURN(const CompiledProgram plan,
                             client->compute().Compile(graph.program, call.operands, call.mesh_id));
  if (invocation.json) {
    invocation.Print(PlanJson(plan));
    return absl::OkStatus();
  }
  PrintPlan(plan);
  PrintPlanTimes(plan);
  PrintRange(plan);
  return absl::OkStatus();
}

absl::Status Run(const Invocation& invocation, const RunFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const RunTexts texts, TextsOf(flags));
  SHARDMESH_ASSIGN_OR_RETURN(const Graph graph, ReadGraph(flags.path));
  SHARDMESH_RETURN_IF_ERROR(CheckNames(graph, texts));
  std::unique_ptr<Interruption> interruption;
  if (!texts.files.empty()) {
    interruption = std::make_unique<Interruption>("no unfinished file is left", invocation.output,
                                                  [files = texts.files] {
                                                    for (const auto& [output, path] : files)
                                                      RemoveTemporaryFilesOf(path);
                                                  });
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  GraphBindings bindings{.operands = {}, .array_prefix = flags.prefix, .mesh_id = flags.mesh_id};
  for (const auto& [name, text] : texts.operands) {
    SHARDMESH_ASSIGN_OR_RETURN(Operand operand,
                               OperandOf(invocation, client.get(), text, flags.mesh_id));
    bindings.operands.emplace(name, std::move(operand));
  }
  bindings.output_names.insert(texts.names.begin(), texts.names.end());
  SHARDMESH_ASSIGN_OR_RETURN(ExecuteCall call, BindGraph(graph, bindings));
  if (flags.plan_only) return ShowGraphPlan(invocation, client.get(), graph, call);
  for (const auto& [output, path] : texts.files) {
    // Before the step, which may take long, check that the file can be written.
    SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(path).status());
  }
  InspectFlags inspect = flags.inspect;
  inspect.verify_options.mesh_id = flags.mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(
      const StepInspector inspector,
      StepInspector::Create(inspect, client.get(), graph.program, &call.operands));
  call.output.return_trace = inspector.needs_trace();
  // The step does not run again if a result is lost before it is gathered: it may change state.
  SHARDMESH_ASSIGN_OR_RETURN(const StepResult result, client->compute().Execute(call));
  for (const auto& [output, path] : texts.files) {
    SHARDMESH_ASSIGN_OR_RETURN(const StepOutput* const found, FindOutput(graph, result, output));
    ProgressBar bar("gathering", invocation.quiet);
    SHARDMESH_RETURN_IF_ERROR(
        client->arrays()
            .GatherToNpy(ArraySelector::ById(found->array.descriptor.array_id), path, ShowOn(&bar))
            .status());
  }
  if (!invocation.json) {
    PrintRun(graph, result, texts);
    return inspector.Inspect(result, nullptr);
  }
  Json json = RunJson(graph, result, texts);
  const absl::Status inspected = inspector.Inspect(result, &json);
  invocation.Print(json);
  return inspected;
}

}  // namespace

void AddRunCommands(CommandLine* line) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* const run =
      line->AddCommand("run", "Run a graph of computations on the workers, from a file",
                       [flags](const Invocation& i) { return Run(i, *flags); });
  run->add_option("graph", flags->path, "a shardmesh.v1.Graph in protobuf's text format")
      ->required();
  run->add_option("--operand", flags->operands,
                  "x=ARRAY or x=FILE.npy: what the operand x of the graph is; once for each")
      ->allow_extra_args(false);
  run->add_option("--prefix", flags->prefix,
                  "each operand that no --operand gives is the array of this name and the "
                  "operand's name");
  CLI::Option* const out =
      run->add_option("--out", flags->files, "y=FILE.npy: write the output y to this .npy file")
          ->allow_extra_args(false);
  CLI::Option* const as =
      run->add_option("--as", flags->names,
                      "y=NAME: keep the output y in the cluster under this name")
          ->allow_extra_args(false);
  run->add_option("--mesh", flags->mesh_id,
                  "name of the mesh, for a graph without arrays (default: that of the arrays)");
  CLI::Option* const plan_only =
      run->add_flag(
             "--plan-only", flags->plan_only,
             "run nothing; show the instructions, the memory that they take, and the bytes that "
             "devices would send")
          ->excludes(out)
          ->excludes(as);
  AddTraceOption(run, &flags->inspect, plan_only);
  AddVerifyOptions(run, &flags->inspect, plan_only);
}

}  // namespace shardmesh::client
