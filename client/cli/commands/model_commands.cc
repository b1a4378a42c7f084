// Commands embed, generate: transformers whose weights are on the workers.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/step_report.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "client/inspect/verify_series.h"
#include "client/models/embed_sentences.h"
#include "client/models/generate_tokens.h"
#include "client/models/loaded_model.h"
#include "client/models/model_config.h"
#include "process/file.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/npy.h"
#include "tensor/view.h"

namespace shardmesh::client {
namespace {

// The flags of commands that run a model.
struct ModelFlags {
  std::string model;  // a folder, or the name of a model on the cluster
  std::string name;   // of the model on the cluster; empty: that of the folder
  std::string mesh;
  bool quantises = false;
  std::vector<std::string> tokens;
};

absl::StatusOr<bool> ParseWeightDtype(std::string_view text) {
  if (text == "I8" || text == "i8") return true;
  return WrongUse(StrCat("\"", text, "\" is not I8, the only type to which weights are converted"));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ParseTokens(
    const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& text : texts) {
    std::vector<int32_t>& sequence = sequences.emplace_back();
    for (const auto& piece : absl::StrSplit(text, ',')) {
      int32_t token = 0;
      if (!absl::SimpleAtoi(piece, &token) || token < 0) {
        return WrongUse(StrCat("--tokens: \"", ToStd(piece),
                               "\" is not a token; give whole numbers from 0, such as 1,2,3"));
      }
      sequence.push_back(token);
    }
  }
  return sequences;
}

// Returns the name that a model gets on the cluster: that of its folder.
std::string NameOf(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// The options of a call that may take until the end of --deadline.
CallOptions Until(const std::optional<SteadyDeadline>& end) {
  CallOptions options;
  if (end.has_value()) options.timeout = end->left();
  return options;
}

// Returns a function that removes what an interrupted command leaves of the file; null without one.
std::function<void()> RemovalOfParts(const std::string& path) {
  if (path.empty()) return nullptr;
  return [path] { RemoveTemporaryFilesOf(path); };
}

// From here on, a signal ends the program. Before that, the unfinished file of `path` is removed,
// and the session is closed: the caches of the run would otherwise stay until it expires. `client`
// outlives the interruption.
void GuardRun(std::optional<Interruption>& interruption, MeshClient* client,
              const std::string& path, OutputForm output) {
  interruption.reset();
  interruption.emplace(
      path.empty() ? "the model stays loaded, and nothing else" : "no unfinished file is left",
      output, [client, path] {
        if (!path.empty()) RemoveTemporaryFilesOf(path);
        client->CloseSession();
      });
}

// Checks that the file can be written, before a model is loaded or a step runs, which may take
// long.
absl::Status CheckWritable(const std::string& path) {
  return path.empty() ? absl::OkStatus() : AtomicFileWriter::Create(path).status();
}

// Loads the model, unless the flags name one that is on the cluster. Loads nothing if `check`, of
// a model that has only its name and its configuration, fails.
absl::StatusOr<LoadedModel> OpenModel(const Invocation& invocation, MeshClient* client,
                                      const ModelFlags& flags,
                                      const std::function<absl::Status(const LoadedModel&)>& check,
                                      Interruption* interruption,
                                      const std::optional<SteadyDeadline>& end) {
  std::error_code error;
  const CallOptions call = Until(end);
  if (!std::filesystem::is_directory(flags.model, error)) {
    if (!flags.mesh.empty() || !flags.name.empty() || flags.quantises) {
      return WrongUse(
          StrCat("--mesh, --as and --weight-dtype are for the folder of a model, and there is no "
                 "folder \"",
                 flags.model, "\""));
    }
    return FindModel(client, flags.model, "tp", call);
  }
  const std::string name = flags.name.empty() ? NameOf(flags.model) : flags.name;
  if (std::string refusal = RefuseNameWithAt(name); !refusal.empty()) {
    return WrongUse(StrCat("--as: ", refusal));
  }
  LoadedModel unloaded;
  unloaded.name = name;
  SHARDMESH_ASSIGN_OR_RETURN(unloaded.config, ReadModelConfig(StrCat(flags.model, "/config.json")));
  SHARDMESH_RETURN_IF_ERROR(check(unloaded));
  ProgressBar bar("loading", invocation.quiet);
  LoadModelOptions options;
  options.mesh = flags.mesh;
  options.quantises = flags.quantises;
  options.progress = ShowOn(&bar);
  options.on_begun = [&](const std::string& transfer_id) {
    interruption->Begun(client, transfer_id);
  };
  absl::StatusOr<LoadedModel> model = LoadModel(client, flags.model, name, options, call);
  SHARDMESH_RETURN_IF_ERROR(interruption->Outcome(model.status()));
  return model;
}

// Opens the model, and calls `run` with it and with the options of its calls, which may take until
// the end of --deadline. `path`: the file that `run` writes; empty: none. An interrupted command
// leaves no part of this file, and no array but those of the model.
absl::Status RunModel(
    const Invocation& invocation, const ModelFlags& flags, const std::string& path,
    const std::function<absl::Status(const LoadedModel&)>& check,
    const std::function<absl::Status(MeshClient*, const LoadedModel&, const CallOptions&)>& run) {
  SHARDMESH_RETURN_IF_ERROR(CheckWritable(path));
  const std::optional<SteadyDeadline> end = invocation.BeginDeadline();
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  std::optional<Interruption> interruption;
  interruption.emplace("nothing was loaded", invocation.output, RemovalOfParts(path));
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect(end));
  SHARDMESH_ASSIGN_OR_RETURN(const LoadedModel model, OpenModel(invocation, client.get(), flags,
                                                                check, &*interruption, end));
  GuardRun(interruption, client.get(), path, invocation.output);
  return run(client.get(), model, Until(end));
}

Json StepsJson(absl::Span<const StepTimings> steps) {
  Json json = Json::array();
  for (const StepTimings& step : steps) json.push_back(TimingsJson(step));
  return json;
}

void PrintStep(std::string_view what, const StepTimings& step) {
  std::cout << what << " " << FormatTimings(step) << "\n";
  if (step.predicted.has_value()) {
    std::cout << "Predicted: " << FormatPrediction(*step.predicted) << "\n";
  }
}

// Writes a tensor of F32. `elements` has as many as the shape needs.
absl::Status WriteFloats(const std::string& path, const Shape& shape,
                         const std::vector<float>& elements) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const TensorView view,
      TensorView::Create(Dtype::kF32, shape,
                         absl::MakeConstSpan(reinterpret_cast<const char*>(elements.data()),
                                             elements.size() * sizeof(float))));
  return WriteNpy(path, view);
}

// Writes a matrix with a row for each sentence.
absl::Status WriteEmbeddings(const std::string& path,
                             const std::vector<std::vector<float>>& embeddings) {
  std::vector<float> elements;
  for (const std::vector<float>& embedding : embeddings) {
    elements.insert(elements.end(), embedding.begin(), embedding.end());
  }
  return WriteFloats(
      path,
      {static_cast<int64_t>(embeddings.size()), static_cast<int64_t>(embeddings.front().size())},
      elements);
}

// Writes the logits of a generation: [sequences, steps, vocabulary].
absl::Status WriteLogits(const std::string& path, const Generation& generation) {
  std::vector<float> elements;
  for (size_t sequence = 0; sequence < generation.tokens.size(); ++sequence) {
    for (const std::vector<std::vector<float>>& step : generation.logits) {
      elements.insert(elements.end(), step[sequence].begin(), step[sequence].end());
    }
  }
  const std::vector<std::vector<float>>& first = generation.logits.front();
  return WriteFloats(
      path,
      {static_cast<int64_t>(generation.tokens.size()),
       static_cast<int64_t>(generation.logits.size()), static_cast<int64_t>(first.front().size())},
      elements);
}

// Adds the comparisons of all steps to `json`, if there were some; if `json` is null, prints them.
void ReportSteps(const std::optional<VerifyingObserver>& observer, Json* json) {
  if (!observer.has_value()) return;
  if (json == nullptr) {
    std::cout << FormatCount(observer->steps(), "step") << " verified:\n";
  } else {
    (*json)["verified_steps"] = observer->steps();
  }
  ReportVerified(observer->verified(), json);
}

struct EmbedFlags {
  ModelFlags model;
  std::string path;
  InspectFlags inspect;
};

void PrintEmbeddings(const SentenceEmbeddings& result, const std::string& path) {
  const size_t size = result.embeddings.front().size();
  for (size_t i = 0; i < result.embeddings.size() && path.empty(); ++i) {
    std::cout << StrJoin(result.embeddings[i], ",") << "\n";
  }
  std::cout << FormatCount(static_cast<int64_t>(result.embeddings.size()), "embedding") << " of "
            << size << " elements" << (path.empty() ? "" : StrCat(", written to ", path)) << "\n";
  PrintStep("The last step", result.steps.back());
}

absl::Status RunEmbed(const Invocation& invocation, const EmbedFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto sentences, ParseTokens(flags.model.tokens));
  const auto embed = [&](MeshClient* client, const LoadedModel& model,
                         const CallOptions& options) -> absl::Status {
    std::optional<VerifyingObserver> observer;
    if (flags.inspect.verify) observer.emplace(client);
    SHARDMESH_ASSIGN_OR_RETURN(const SentenceEmbeddings result,
                               EmbedSentences(client, model, sentences, options,
                                              observer.has_value() ? &*observer : nullptr));
    if (!flags.path.empty()) {
      SHARDMESH_RETURN_IF_ERROR(WriteEmbeddings(flags.path, result.embeddings));
    }
    if (!invocation.json) {
      PrintEmbeddings(result, flags.path);
      ReportSteps(observer, nullptr);
      return absl::OkStatus();
    }
    Json json = {{"model", model.name}, {"size_bytes", model.size_bytes}};
    if (flags.path.empty()) {
      json["embeddings"] = result.embeddings;
    } else {
      json["path"] = flags.path;
    }
    json["steps"] = StepsJson(result.steps);
    ReportSteps(observer, &json);
    invocation.Print(json);
    return absl::OkStatus();
  };
  return RunModel(
      invocation, flags.model, flags.path,
      [&](const LoadedModel& unloaded) { return CheckSentences(unloaded, sentences); }, embed);
}

struct GenerateFlags {
  ModelFlags model;
  int64_t max_new = 64;
  std::string logits_path;
  InspectFlags inspect;
};

double TokensPerSecond(const Generation& generation) {
  const double seconds = Seconds(generation.decode_time);
  const auto tokens =
      static_cast<double>(generation.decode_steps) * static_cast<double>(generation.tokens.size());
  return seconds > 0 ? tokens / seconds : 0;
}

void PrintGeneration(const Generation& generation) {
  for (const std::vector<int32_t>& tokens : generation.tokens) {
    std::cout << StrJoin(tokens, ",") << "\n";
  }
  PrintStep("The prompts", generation.prefill);
  if (generation.decode_steps == 0) return;
  std::cout << FormatCount(generation.decode_steps, "step") << " took "
            << FormatTime(generation.decode_time) << ", "
            << absl::StrFormat("%.1f", TokensPerSecond(generation)) << " tokens/s\n";
  PrintStep("The last step", generation.decode);
}

Json GenerationJson(const LoadedModel& model, const Generation& generation,
                    const std::string& logits_path) {
  Json json = {{"model", model.name},
               {"size_bytes", model.size_bytes},
               {"tokens", generation.tokens},
               {"prefill", TimingsJson(generation.prefill)},
               {"decode_steps", generation.decode_steps}};
  if (!logits_path.empty()) json["logits_path"] = logits_path;
  if (generation.decode_steps > 0) {
    json["decode_s"] = Seconds(generation.decode_time);
    json["tokens_per_s"] = TokensPerSecond(generation);
    json["last_step"] = TimingsJson(generation.decode);
  }
  return json;
}

absl::Status RunGenerate(const Invocation& invocation, const GenerateFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto prompts, ParseTokens(flags.model.tokens));
  GenerateOptions generate_options;
  generate_options.max_new_tokens = flags.max_new;
  generate_options.gives_logits = !flags.logits_path.empty();
  const auto generate = [&](MeshClient* client, const LoadedModel& model,
                            const CallOptions& options) -> absl::Status {
    std::optional<VerifyingObserver> observer;
    if (flags.inspect.verify) generate_options.observer = &observer.emplace(client);
    absl::StatusOr<Generation> generation;
    {
      ProgressBar bar("generating", invocation.quiet);
      int64_t steps = 0;
      generate_options.on_tokens = [&](absl::Span<const int32_t>) {
        bar.ShowCount(++steps, flags.max_new);
      };
      generation = GenerateTokens(client, model, prompts, generate_options, options);
      generate_options.on_tokens = nullptr;
      generate_options.observer = nullptr;
    }
    SHARDMESH_RETURN_IF_ERROR(generation.status());
    if (!flags.logits_path.empty()) {
      SHARDMESH_RETURN_IF_ERROR(WriteLogits(flags.logits_path, *generation));
    }
    if (invocation.json) {
      Json json = GenerationJson(model, *generation, flags.logits_path);
      ReportSteps(observer, &json);
      invocation.Print(json);
    } else {
      PrintGeneration(*generation);
      ReportSteps(observer, nullptr);
    }
    return absl::OkStatus();
  };
  return RunModel(
      invocation, flags.model, flags.logits_path,
      [&](const LoadedModel& unloaded) {
        return CheckPrompts(unloaded, prompts, generate_options);
      },
      generate);
}

void AddModelOptions(CLI::App* app, ModelFlags* flags, std::string_view each) {
  app->add_option("--model", flags->model,
                  "folder with config.json and safetensors files, loaded if it is not yet; or the "
                  "name of a model that was loaded")
      ->required();
  app->add_option("--tokens", flags->tokens,
                  StrCat("tokens of ", each, ", such as 101,7592,102; once for each"))
      ->required()
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  app->add_option("--as", flags->name,
                  "name of the model on the cluster (default: that of the folder)");
  app->add_option("--mesh", flags->mesh,
                  "name of the mesh; its axis tp partitions the heads (default: default)");
  AddParsedOption(app, "--weight-dtype", &flags->quantises, ParseWeightDtype,
                  "I8: the weights of linear layers are loaded as I8, with a scale for each output "
                  "feature (default: as in the files)")
      ->type_name("{I8}");
}

}  // namespace

void AddModelCommands(CommandLine* line) {
  auto embed_flags = std::make_shared<EmbedFlags>();
  CLI::App* const embed =
      line->AddCommand("embed", "Embed sentences by a BERT-like model, such as all-MiniLM-L6-v2",
                       [embed_flags](const Invocation& i) { return RunEmbed(i, *embed_flags); });
  AddModelOptions(embed, &embed_flags->model, "a sentence");
  AddParsedOption(
      embed, "--out", &embed_flags->path,
      [](std::string_view text) { return ParseNpyPath(text, "embed"); },
      ".npy file that gets the embeddings, a row for each sentence (default: print them)");
  AddVerifyOption(embed, &embed_flags->inspect, /*plan_only=*/nullptr);

  auto generate_flags = std::make_shared<GenerateFlags>();
  CLI::App* const generate = line->AddCommand(
      "generate", "Continue prompts by a Llama-shaped model, by the most likely token each time",
      [generate_flags](const Invocation& i) { return RunGenerate(i, *generate_flags); });
  AddModelOptions(generate, &generate_flags->model, "a prompt");
  generate
      ->add_option("--max-new", generate_flags->max_new,
                   "most new tokens of each prompt (default: 64)")
      ->check(WholeNumberFrom(1));
  AddParsedOption(
      generate, "--logits", &generate_flags->logits_path,
      [](std::string_view text) { return ParseNpyPath(text, "generate"); },
      ".npy file that gets the logits of all steps: [prompts, steps, vocabulary]; a step gives at "
      "most 1 MiB of them");
  AddVerifyOption(generate, &generate_flags->inspect, /*plan_only=*/nullptr);
}

}  // namespace shardmesh::client
