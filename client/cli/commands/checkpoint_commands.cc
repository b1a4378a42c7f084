// Commands make-checkpoint, make-tensor: files of random values, for trials and benchmarks.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/made_checkpoint.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "rpc/flags.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
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

struct CheckpointFlags {
  std::string path;
  std::string like;
  std::optional<int64_t> size_bytes;
  Dtype dtype = Dtype::kF32;
  uint64_t seed = 1;
};

absl::Status RunMakeCheckpoint(const Invocation& invocation, const CheckpointFlags& flags) {
  const bool llama = flags.like == kLlama || (flags.like.empty() && flags.size_bytes.has_value());
  if (llama != flags.size_bytes.has_value()) {
    return WrongUse(llama ? "--like llama needs a --size"
                          : StrCat("--size goes with --like ", kLlama, ": ", kMiniLm,
                                   " has the size that it has"));
  }
  if (llama && *flags.size_bytes > kMaxSizeBytes) {
    return WrongUse(StrCat("--size: ", *flags.size_bytes, " bytes are over the limit of ",
                           kMaxSizeBytes, "; give 1TiB or less"));
  }
  std::vector<SafetensorsWriter::Tensor> tensors = MiniLmTensors();
  if (llama) {
    absl::StatusOr<std::vector<SafetensorsWriter::Tensor>> made =
        LlamaTensors(*flags.size_bytes, flags.dtype);
    if (!made.ok()) return WrongUse(ToStd(made.status().message()));
    tensors = *std::move(made);
  } else if (flags.dtype != Dtype::kF32) {
    return WrongUse(StrCat("--dtype goes with --like ", kLlama));
  }
  const auto interruption = GuardOutputFile(flags.path, invocation.output);
  {
    ProgressBar bar("writing", invocation.quiet);
    SHARDMESH_RETURN_IF_ERROR(WriteRandomCheckpoint(flags.path, tensors, flags.seed, ShowOn(&bar)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.path));
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
  auto made = std::make_shared<CheckpointFlags>();
  CLI::App* const checkpoint =
      line->AddCommand("make-checkpoint", "Write a safetensors checkpoint of random values",
                       [made](const Invocation& i) { return RunMakeCheckpoint(i, *made); });
  checkpoint->add_option("--out", made->path, "file to write")
      ->required()
      ->check(RefuseStandardOutput);
  checkpoint
      ->add_option("--like", made->like,
                   StrCat("architecture: ", kMiniLm, ", or ", kLlama,
                          " of any size (default: the first, or with --size the other)"))
      ->check(CLI::IsMember({kMiniLm, kLlama}));
  AddParsedOption(checkpoint, "--size", &made->size_bytes, ParseSize,
                  "about how large, such as 2GiB");
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
