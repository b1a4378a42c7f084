// Runs a transformer whose weights are on a running cluster, once for each line of its input.
//
// clang-format off
//   model_bench COORDINATOR FOLDER           the mesh is "default"; the folder has a model's config.json and weights
// clang-format on
//
// Loads the model, and prints "ready". Then answers each line of its input with one line of JSON:
//
// clang-format off
//   embed SENTENCES LENGTH RUNS              {"call_s", "call_p10_s", "call_p90_s", "kernel_s", "predicted_s"}: of a call
//   generate PROMPTS LENGTH NEW              {"prefill_s", "decode_s"}: of the step that reads the prompts, from its
//                                            admission to its commit, and of all further steps as the client sees them
// clang-format on
//
// Tokens are pseudo-random. Each sentence and each prompt has LENGTH of them.
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "bench/step_samples.h"
#include "client/mesh_client.h"
#include "client/models/embed_sentences.h"
#include "client/models/generate_tokens.h"
#include "client/models/loaded_model.h"

namespace shardmesh::bench {
namespace {

using client::LoadedModel;
using nlohmann::json;

std::vector<std::vector<int32_t>> RandomTokens(int64_t sequences, int64_t length,
                                               int64_t vocabulary_size) {
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(sequences));
  for (std::vector<int32_t>& sequence : tokens) {
    for (int64_t i = 0; i < length; ++i) {
      sequence.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary_size)));
    }
  }
  return tokens;
}

json Embed(client::MeshClient& mesh, const LoadedModel& model, int64_t sentences, int64_t length,
           int64_t runs) {
  const auto tokens =
      RandomTokens(sentences, length, std::get<client::BertConfig>(model.config).vocabulary_size);
  StepSamples samples;
  for (int64_t run = -2; run < runs; ++run) {
    const absl::Time begin = absl::Now();
    const client::SentenceEmbeddings result = OrExit(EmbedSentences(&mesh, model, tokens));
    const absl::Duration time = absl::Now() - begin;
    if (run >= 0) samples.Add(time, result.steps.back());
  }
  return samples.Json();
}

json Generate(client::MeshClient& mesh, const LoadedModel& model, int64_t prompts, int64_t length,
              int64_t new_tokens) {
  LoadedModel endless = model;
  // All sequences go on to the last token.
  auto& config = std::get<client::LlamaConfig>(endless.config);
  config.stop_tokens.clear();
  client::GenerateOptions options;
  options.max_new_tokens = new_tokens;
  const client::Generation result = OrExit(GenerateTokens(
      &mesh, endless, RandomTokens(prompts, length, config.vocabulary_size), options));
  return {{"prefill_s", absl::ToDoubleSeconds(result.prefill.total)},
          {"decode_s", absl::ToDoubleSeconds(result.decode_time)},
          {"decode_steps", result.decode_steps}};
}

}  // namespace
}  // namespace shardmesh::bench

int main(int argc, char** argv) {
  namespace bench = shardmesh::bench;
  if (argc != 3) {
    std::cerr << "usage: model_bench COORDINATOR FOLDER\n";
    return 2;
  }
  const auto mesh = bench::OrExit(shardmesh::client::MeshClient::Connect(argv[1]));
  const auto model = bench::OrExit(shardmesh::client::LoadModel(mesh.get(), argv[2], "model"));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    int64_t count = 0, length = 0, runs = 0;
    if (!(words >> verb >> count >> length >> runs)) {
      std::cerr << "model_bench: \"" << line << "\" is no verb with three numbers\n";
      return 2;
    }
    std::cout << (verb == "embed" ? bench::Embed(*mesh, model, count, length, runs)
                                  : bench::Generate(*mesh, model, count, length, runs))
                     .dump()
              << std::endl;
  }
}
