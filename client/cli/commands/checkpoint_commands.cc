// Commands save, make-checkpoint, make-tensor: checkpoints of arrays, and files of random values.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/types/span.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/made_checkpoint.h"
#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "client/models/model_config.h"
#include "rpc/flags.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/npy.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace shardmesh::client {
namespace {

constexpr char kMiniLm[] = "all-minilm-l6-v2";
constexpr char kLlama[] = "llama";
// The largest checkpoint that can be made. For a much larger checkpoint, the list of its tensors
// would already exhaust memory.
constexpr int64_t kMaxSizeBytes = int64_t{1} << 40;

// The value of --size: a number of bytes, or the name of a model.
struct MadeSize {
  std::string name;        // "tiny", "1b", or empty
  int64_t size_bytes = 0;  // if there is no name
};

struct CheckpointFlags {
  std::string path;
  std::string like;
  std::optional<MadeSize> size;
  Dtype dtype = Dtype::kF32;
  uint64_t seed = 1;
  bool folder = false;
};

absl::StatusOr<MadeSize> ParseMadeSize(std::string_view text) {
  const std::string name = absl::AsciiStrToLower(ToAbsl(text));
  if (name == "tiny" || name == "1b") return MadeSize{.name = name};
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, ParseSize(text));
  return MadeSize{.name = {}, .size_bytes = size_bytes};
}

// Returns the model whose weights make-checkpoint writes.
absl::StatusOr<ModelConfig> MadeModel(const CheckpointFlags& flags) {
  const bool llama = flags.like == kLlama || (flags.like.empty() && flags.size.has_value());
  const bool is_tiny = flags.size.has_value() && flags.size->name == "tiny";
  if (!llama) {
    if (flags.size.has_value() && !is_tiny) {
      return WrongUse(StrCat("--size goes with --like ", kLlama, ": ", kMiniLm,
                             " has the size that it has, or is tiny"));
    }
    if (flags.dtype != Dtype::kF32) return WrongUse(StrCat("--dtype goes with --like ", kLlama));
    return is_tiny ? TinyBertConfig() : MiniLmConfig();
  }
  if (!flags.size.has_value()) return WrongUse("--like llama needs a --size");
  if (flags.dtype != Dtype::kF32 && flags.dtype != Dtype::kBF16 && flags.dtype != Dtype::kF16) {
    return WrongUse(StrCat("--dtype: weights are F16, BF16 or F32, not ", DtypeName(flags.dtype)));
  }
  if (is_tiny) return TinyLlamaConfig();
  if (flags.size->name == "1b") return BillionLlamaConfig();
  if (flags.size->size_bytes > kMaxSizeBytes) {
    return WrongUse(StrCat("--size: ", FormatBytes(flags.size->size_bytes),
                           " are over the limit of ", FormatBytes(kMaxSizeBytes),
                           "; give 1TiB or less"));
  }
  absl::StatusOr<LlamaConfig> made = LlamaConfigOfBytes(flags.size->size_bytes, flags.dtype);
  if (!made.ok()) return WrongUse(ToStd(made.status().message()));
  return *std::move(made);
}

absl::Status RunMakeCheckpoint(const Invocation& invocation, const CheckpointFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const ModelConfig config, MadeModel(flags));
  const bool is_named = flags.size.has_value() && !flags.size->name.empty();
  const bool in_folder = flags.folder || is_named;
  const auto interruption = GuardOutputFile(
      in_folder ? StrCat(flags.path, "/model.safetensors") : flags.path, invocation.output);
  {
    ProgressBar bar("writing", invocation.quiet);
    if (in_folder) {
      SHARDMESH_RETURN_IF_ERROR(
          WriteRandomModel(flags.path, config, flags.dtype, flags.seed, ShowOn(&bar)));
    } else {
      // The file of all-MiniLM-L6-v2 has tensors that the model does not need.
      const auto tensors = std::holds_alternative<BertConfig>(config)
                               ? MiniLmTensors()
                               : TensorsOf(config, flags.dtype);
      SHARDMESH_RETURN_IF_ERROR(
          WriteRandomCheckpoint(flags.path, tensors, flags.seed, ShowOn(&bar)));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                             Checkpoint::Open(flags.path, {}, invocation.KeepOpening()));
  if (invocation.json) {
    invocation.Print({{"path", flags.path},
                      {"tensors", checkpoint.tensors().size()},
                      {"size_bytes", checkpoint.size_bytes()},
                      {"seed", flags.seed}});
  } else {
    std::cout << "Wrote " << flags.path << ": "
              << FormatCount(checkpoint.tensors().size(), "tensor") << ", "
              << FormatBytes(checkpoint.size_bytes()) << ", random values of seed " << flags.seed
              << "\n";
  }
  return absl::OkStatus();
}

struct SaveFlags {
  std::string prefix;
  std::string folder;
  std::optional<int64_t> step;
  std::optional<int64_t> keep;
  std::optional<int64_t> max_shard_size;
  bool single_file = false;
  bool overwrite = false;
  bool strip_prefix = false;
  bool validate_only = false;
  bool detach = false;
};

// The workers resolve the path, perhaps on other hosts: a relative path is taken from this
// program's folder.
absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (path.empty() || error) return WrongUse(StrCat("\"", path, "\" is not the path of a folder"));
  std::string text = absolute.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// Says that the folder, if this program sees it, also has the checkpoints of steps.
void PrintOtherSteps(const std::string& folder) {
  const absl::StatusOr<std::vector<int64_t>> steps = CompleteSteps(folder);
  if (!steps.ok() || steps->empty()) return;
  std::cout << "The folder also has " << FormatCount(steps->size(), "complete step") << ": `load "
            << folder << "` takes the checkpoint in the folder itself, --step " << steps->back()
            << " the latest step\n";
}

// Returns text such as `step 3` or `steps 3, 4`.
std::string FormatSteps(absl::Span<const int64_t> steps) {
  constexpr size_t kMostShown = 16;
  return StrCat(steps.size() == 1 ? "step " : "steps ", StrJoinFirst(kMostShown, steps, ", "));
}

// Says which steps a save with --step has removed and kept. Warns if the folder has a later step
// than the saved one, which `load` would take.
void PrintSteps(const SavedCheckpoint& saved, int64_t step, bool has_keep,
                const std::string& folder) {
  if (!saved.removed_steps.empty()) {
    std::cout << (saved.removed_steps.size() == 1 ? "Removed the checkpoint of "
                                                  : "Removed the checkpoints of ")
              << FormatSteps(saved.removed_steps) << "\n";
  }
  const auto later = std::upper_bound(saved.kept_steps.begin(), saved.kept_steps.end(), step);
  const std::vector<int64_t> kept(saved.kept_steps.begin(), later);
  const std::vector<int64_t> higher(later, saved.kept_steps.end());
  if (has_keep && !kept.empty()) {
    std::cout << (kept.size() == 1 ? "Kept the checkpoint of " : "Kept the checkpoints of ")
              << FormatSteps(kept) << "\n";
  }
  if (higher.empty()) return;
  std::cout << "Step " << step << " is not the latest: the folder also has " << FormatSteps(higher)
            << (has_keep ? ", which --keep neither counts nor removes. " : ". ") << "`load "
            << folder << "` takes step " << higher.back() << ", with `--step " << step
            << "` the one that was saved now\n";
}

void PrintSaved(const SavedCheckpoint& saved, absl::Duration time) {
  std::cout << "Saved " << FormatCount(saved.tensors, "tensor") << ", "
            << FormatBytes(saved.size_bytes) << " in " << FormatCount(saved.files, "file") << " to "
            << saved.path << ", in " << FormatTime(time) << "; revision " << saved.revision << "\n";
  if (saved.linked_files > 0) {
    std::cout << FormatCount(saved.linked_files, "file")
              << " of unchanged tensors: linked to the previous checkpoint, not written\n";
  }
  if (saved.found_bytes > 0) {
    std::cout << "Continued an earlier save that did not end: found "
              << FormatBytes(saved.found_bytes) << " intact, wrote "
              << FormatBytes(saved.written_bytes) << "\n";
  } else if (saved.took_over) {
    std::cout << "Removed files of an earlier save that did not end\n";
  }
}

// Returns `outcome`, then what a save into `folder` that ended early leaves there, and what to do
// with it.
std::string LeftBySave(const std::string& folder, std::string_view outcome = "nothing was saved") {
  return StrCat(outcome, "; if 64 MiB or more were written, they stay in ", folder,
                "/.shardmesh-save: repeat the command to go on from there, or remove that folder");
}

// Begins a save that outlives this command, and says how to wait for it.
absl::Status RunDetachedSave(const Invocation& invocation, const std::string& prefix,
                             const std::string& folder, SaveOptions options) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  options.detached = true;
  SHARDMESH_ASSIGN_OR_RETURN(const BegunSave begun,
                             client->arrays().BeginSave(prefix, folder, options));
  if (invocation.json) {
    invocation.Print({{"operation_id", begun.operation_id},
                      {"tensors", begun.tensors},
                      {"size_bytes", begun.size_bytes},
                      {"revision", begun.revision}});
  } else {
    std::cout << "Began to save " << FormatCount(begun.tensors, "tensor") << ", "
              << FormatBytes(begun.size_bytes) << " to " << folder << "; revision "
              << begun.revision << "\n"
              << "`shardmesh ops watch " << begun.operation_id << "` waits for its end, `shardmesh "
              << "ops cancel " << begun.operation_id << " --force` cancels it\n";
  }
  return absl::OkStatus();
}

absl::Status RunSave(const Invocation& invocation, const SaveFlags& flags) {
  if (flags.keep.has_value() && !flags.step.has_value()) {
    return WrongUse("--keep needs a --step: only checkpoints of steps are removed");
  }
  if (flags.keep.has_value() && (*flags.keep < 1 || *flags.keep > 1'000'000)) {
    return WrongUse(StrCat("--keep ", *flags.keep, ": give 1 to 1000000"));
  }
  if (flags.max_shard_size.has_value() && flags.single_file) {
    return WrongUse("--max-shard-size and --single-file exclude each other");
  }
  if (flags.detach && flags.validate_only) {
    return WrongUse("--detach and --validate-only exclude each other: a check begins no save");
  }
  constexpr int64_t kLeastShardSize = int64_t{1} << 20;
  if (const int64_t size = flags.max_shard_size.value_or(0); size != 0 && size < kLeastShardSize) {
    return WrongUse(StrCat("--max-shard-size: ", FormatBytes(size),
                           " are less than the least, 1MiB; leave it out for the default"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string folder, AbsolutePath(flags.folder));
  SaveOptions options;
  options.step = flags.step;
  options.keep = static_cast<int>(flags.keep.value_or(0));
  options.max_file_bytes = flags.max_shard_size.value_or(0);
  options.single_file = flags.single_file;
  options.overwrite = flags.overwrite;
  options.strip_prefix = flags.strip_prefix;
  options.validate_only = flags.validate_only;
  if (flags.detach) return RunDetachedSave(invocation, flags.prefix, folder, options);
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  Interruption interruption(flags.validate_only ? "nothing was saved" : LeftBySave(folder),
                            invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  options.on_begun = [&](const std::string& operation_id) {
    interruption.Begun(client.get(), operation_id);
  };
  const Stopwatch stopwatch;
  absl::StatusOr<SavedCheckpoint> saved;
  {
    ProgressBar bar("saving", invocation.quiet);
    options.progress = ShowOn(&bar);
    saved = client->arrays().SaveCheckpoint(flags.prefix, folder, options);
  }
  if (saved.status().code() == absl::StatusCode::kCancelled && !flags.validate_only) {
    // `ops cancel` of another command may have cancelled it.
    saved = WithContext(saved.status(), LeftBySave(folder));
  }
  if (absl::IsDeadlineExceeded(saved.status()) && !flags.validate_only) {
    // The client has cancelled the save. A save that had ended by then is there.
    saved = WithContext(saved.status(), LeftBySave(folder, "the save was given up"));
  }
  SHARDMESH_RETURN_IF_ERROR(interruption.Outcome(saved.status()));
  if (invocation.json) {
    Json json = {{"tensors", saved->tensors},
                 {"files", saved->files},
                 {"size_bytes", saved->size_bytes},
                 {"revision", saved->revision}};
    if (!flags.validate_only) {
      json["path"] = saved->path;
      json["written_bytes"] = saved->written_bytes;
      json["found_bytes"] = saved->found_bytes;
      json["linked_files"] = saved->linked_files;
      json["took_over"] = saved->took_over;
      json["removed_steps"] = saved->removed_steps;
      json["kept_steps"] = saved->kept_steps;
      json["time_s"] = Seconds(stopwatch.time());
    }
    invocation.Print(MarkIfValidated(std::move(json), flags.validate_only));
  } else if (flags.validate_only) {
    std::cout << "Would save " << FormatCount(saved->tensors, "tensor") << ", "
              << FormatBytes(saved->size_bytes) << " in " << FormatCount(saved->files, "file")
              << " to " << folder << "; revision " << saved->revision << "\n";
  } else {
    PrintSaved(*saved, stopwatch.time());
    if (flags.step.has_value()) {
      PrintSteps(*saved, *flags.step, flags.keep.has_value(), folder);
    } else {
      PrintOtherSteps(folder);
    }
  }
  return absl::OkStatus();
}

struct TensorFlags {
  std::string path;
  Shape shape;
  uint64_t seed = 1;
};

absl::Status RunMakeTensor(const Invocation& invocation, const TensorFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(flags.shape));
  if (elements > int64_t{1} << 32) {
    return WrongUse(StrCat(FormatShape(flags.shape), " has more than 2^32 elements"));
  }
  const auto interruption = GuardOutputFile(flags.path, invocation.output);
  std::vector<float> values(static_cast<size_t>(elements));
  const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()),
                               values.size() * sizeof(float));
  SHARDMESH_RETURN_IF_ERROR(FillNormal(Dtype::kF32, flags.seed, /*deviation=*/1, 0, bytes));
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Create(Dtype::kF32, flags.shape, bytes));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(flags.path, view));
  if (invocation.json) {
    invocation.Print(
        {{"path", flags.path}, {"shape", ShapeJson(flags.shape)}, {"seed", flags.seed}});
  } else {
    std::cout << "Wrote " << flags.path << ": F32 " << FormatShape(flags.shape)
              << ", normally distributed, seed " << flags.seed << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddCheckpointCommands(CommandLine* line) {
  auto saved = std::make_shared<SaveFlags>();
  CLI::App* const save =
      line->AddCommand("save", "Save arrays as a checkpoint, which the workers write together",
                       [saved](const Invocation& i) { return RunSave(i, *saved); });
  save->add_option("prefix", saved->prefix,
                   "save the arrays whose names begin with this; '' for all named arrays")
      ->required();
  save->add_option("folder", saved->folder,
                   "folder that all workers see, below the --write-root of each")
      ->required();
  save->add_option("--step", saved->step, "save into the folder step-N below the folder")
      ->check(CLI::Range(int64_t{0}, kMaxCheckpointStep));
  save->add_option("--keep", saved->keep,
                   "with --step: keep so many complete checkpoints, the new one and those of the "
                   "next lower steps; remove those of all steps below, and none above");
  AddParsedOption(save, "--max-shard-size", &saved->max_shard_size, ParseSize,
                  "largest size of a file, 1MiB or more, such as 2GiB (default, and 0: 5GB; with "
                  "--step a sixteenth of the tensors, from 16MiB to 256MiB)");
  save->add_flag("--single-file", saved->single_file, "write one model.safetensors of any size");
  save->add_flag("--overwrite", saved->overwrite, "replace a checkpoint that was saved before");
  save->add_flag("--strip-prefix", saved->strip_prefix,
                 "remove the prefix from the names in the checkpoint");
  save->add_flag(
      "--validate-only", saved->validate_only,
      "plan the checkpoint, ask the workers whether they could write it, and save nothing");
  save->add_flag("--detach", saved->detach,
                 "return when the save has begun, and leave it running: `ops watch` waits for it");
  save->footer(
      "The folder lies on the workers' hosts. A save takes all names at one revision: puts and "
      "steps\nmay go on. Ctrl-C cancels it. If 64 MiB or more were written, they stay in the "
      "folder\n"
      ".shardmesh-save, and the same command goes on with them.\n\nExamples:\n"
      "  shardmesh save model/ /ckpt/run-1 --step 1000 --keep 3\n"
      "  shardmesh save model/ /ckpt/run-1 --step 2000 --detach\n"
      "  shardmesh save '' /ckpt/export --single-file");

  auto made = std::make_shared<CheckpointFlags>();
  CLI::App* const checkpoint =
      line->AddCommand("make-checkpoint", "Write a safetensors checkpoint of random values",
                       [made](const Invocation& i) { return RunMakeCheckpoint(i, *made); });
  checkpoint->add_option("--out", made->path, "file or folder to write")
      ->required()
      ->check(RefuseStandardOutput);
  checkpoint
      ->add_option("--like,--arch", made->like,
                   StrCat("architecture: ", kMiniLm, ", or ", kLlama,
                          " of any size (default: the first, or with --size the other)"))
      ->check(CLI::IsMember({kMiniLm, kLlama}));
  AddParsedOption(checkpoint, "--size", &made->size, ParseMadeSize,
                  "about how large, such as 2GiB; or a model in a folder: 1b (1.1 billion "
                  "parameters), or tiny");
  checkpoint->add_flag("--folder", made->folder,
                       "write a folder with config.json and model.safetensors, for `embed` and "
                       "`generate`");
  AddParsedOption(checkpoint, "--dtype", &made->dtype, ParseElementType,
                  "of the weights of --like llama: F32, F16 or BF16 (default: F32)");
  checkpoint->add_option("--seed", made->seed, "the same seed gives the same file (default: 1)");

  auto tensor_flags = std::make_shared<TensorFlags>();
  CLI::App* const tensor = line->AddCommand(
      "make-tensor", "Write a .npy file of random values",
      [tensor_flags](const Invocation& i) { return RunMakeTensor(i, *tensor_flags); });
  AddParsedOption(
      tensor, "--out", &tensor_flags->path,
      [](std::string_view text) { return ParseNpyPath(text, "make-tensor"); }, "file to write")
      ->required();
  AddParsedOption(tensor, "--shape", &tensor_flags->shape, ParseShape, "extents, such as 128,384")
      ->required();
  tensor->add_option("--seed", tensor_flags->seed,
                     "the same seed gives the same file (default: 1)");
}

}  // namespace shardmesh::client
