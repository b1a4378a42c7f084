// Transformers on clusters, compared with plain computations of the same checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/local/child_process.h"
#include "client/held_arrays.h"
#include "client/mesh_client.h"
#include "client/models/embed_sentences.h"
#include "client/models/generate_tokens.h"
#include "client/models/loaded_model.h"
#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "client/types/step_observer.h"
#include "status/str_cat.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tensor/source_file.h"
#include "tests/testing/eventually.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/plain_transformer.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using client::Generation;
using client::LoadedModel;
using ::testing::HasSubstr;

// Returns the F32 tensors of a folder's model.safetensors.
PlainTensors ReadTensors(const std::string& folder) {
  PlainTensors tensors;
  const auto file = SafetensorsFile::Open(folder + "/model.safetensors");
  EXPECT_THAT(file, IsOk());
  if (!file.ok()) return tensors;
  for (const SafetensorsTensor& tensor : file->header().tensors()) {
    PlainTensor& plain = tensors[tensor.name];
    plain.shape.assign(tensor.shape.begin(), tensor.shape.end());
    plain.values = FloatsOf(file->View(tensor).bytes());
  }
  return tensors;
}

// Writes the folder of a model.
void WriteModel(const std::string& folder, const client::ModelConfig& config,
                const PlainTensors& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << client::FormatModelConfig(config);
  std::vector<SafetensorsWriter::Tensor> headers;
  for (const auto& [name, tensor] : tensors) {
    headers.push_back({name, Dtype::kF32, {tensor.shape.begin(), tensor.shape.end()}});
  }
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", headers, {});
  ASSERT_THAT(writer, IsOk());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_THAT(writer->Append({reinterpret_cast<const char*>(tensor.values.data()),
                                tensor.values.size() * sizeof(float)}),
                IsOk());
  }
  ASSERT_THAT(writer->Finish(), IsOk());
}

// Moves the rows of some tensors into one.
void Merge(PlainTensors& tensors, const std::string& whole, const std::vector<std::string>& parts) {
  PlainTensor merged = {{0, tensors.at(parts.front()).shape[1]}, {}};
  for (const std::string& part : parts) {
    const PlainTensor& tensor = tensors.at(part);
    merged.shape[0] += tensor.shape[0];
    merged.values.insert(merged.values.end(), tensor.values.begin(), tensor.values.end());
    tensors.erase(part);
  }
  tensors[whole] = std::move(merged);
}

// The models of `make-checkpoint --size tiny`.
constexpr PlainLlamaConfig kTinyLlama = {
    .layers = 2, .heads = 8, .key_heads = 4, .head_size = 16, .norm_epsilon = 1e-5};
constexpr PlainBertConfig kTinyBert = {.layers = 2, .heads = 4};

class ModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void StartCluster(const std::string& mesh) {
    const std::string root = MakeTestFolder("models");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start(
            {.mesh = mesh, .coordinator_flags = {}, .worker_flags = {"--read-root=" + root}}));
    folder_ = root + "/tiny";
  }
  // Makes the folder of a small model.
  void MakeModel(const std::string& arch) {
    const CommandResult made = cluster_->Run(
        {"make-checkpoint", "--arch", arch, "--size", "tiny", "--seed", "3", "--out", folder_});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    // Until a later change of the file cannot have the same change time, its tensors are not
    // reused.
    struct stat state = {};
    ASSERT_EQ(::stat((folder_ + "/model.safetensors").c_str(), &state), 0);
    const absl::Time changed = absl::TimeFromTimespec(state.st_ctim);
    ASSERT_TRUE(Eventually([&] { return !MayChangeUnseen(changed, absl::Now()); }));
  }
  // Returns how many kernels the workers have compiled.
  double CompiledKernels() {
    double count = 0;
    const std::vector<std::string> addresses = cluster_->metrics_addresses();
    for (size_t i = 1; i < addresses.size(); ++i) {
      auto values = MetricValues(addresses[i]);
      EXPECT_THAT(values, IsOk());
      if (values.ok()) count += (*values)["shardmesh_worker_compiled_kernels_total"];
    }
    return count;
  }
  void Load() {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(model_, client::LoadModel(&cluster_->client(), folder_, "tiny"));
  }

  // Gets the weights of a model of the cluster that are I8, as the numbers that they mean, and
  // expects each within half a step of `tensors`, in which they then replace the originals.
  void TakeQuantised(const LoadedModel& model, PlainTensors& tensors) {
    for (const std::string& weight : model.types.quantised) {
      const auto gather = [&](const std::string& name) {
        auto gathered = cluster_->client().arrays().Gather(
            client::ArraySelector::ByName(StrCat(model.name, "/", name)), nullptr);
        EXPECT_THAT(gathered, IsOk()) << name;
        return gathered;
      };
      const auto integers = gather(weight);
      const auto scales = gather(client::ScaleNameOf(weight));
      ASSERT_TRUE(integers.ok() && scales.ok());
      ASSERT_EQ(integers->view().dtype(), Dtype::kI8);
      const absl::Span<const char> elements = integers->view().bytes();
      const std::vector<float> factors = FloatsOf(scales->view().bytes());
      PlainTensor& tensor = tensors.at(weight);
      ASSERT_EQ(elements.size(), tensor.values.size());
      const auto columns = static_cast<size_t>(tensor.shape[1]);
      for (size_t i = 0; i < elements.size(); ++i) {
        const float factor = factors[i / columns];
        const float value = static_cast<float>(static_cast<signed char>(elements[i])) * factor;
        ASSERT_LE(std::abs(value - tensor.values[i]), 0.501F * factor) << weight;
        tensor.values[i] = value;
      }
    }
  }
  // Expects the tokens, and the logits of the first and the last of `count` steps, of a plain
  // computation.
  void ExpectGenerates(const LoadedModel& model, const PlainTensors& tensors, size_t count) {
    const std::vector<std::vector<int32_t>> prompts = {{1, 5, 77, 200, 3}, {255}};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const Generation generation,
        client::GenerateTokens(
            &cluster_->client(), model, prompts,
            {.max_new_tokens = static_cast<int64_t>(count), .gives_logits = true}));
    const PlainLlama plain(kTinyLlama, tensors);
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int64_t> tokens(prompts[i].begin(), prompts[i].end());
      const std::vector<int64_t> expected = plain.Greedy(tokens, static_cast<int64_t>(count));
      EXPECT_EQ(std::vector<int64_t>(generation.tokens[i].begin(), generation.tokens[i].end()),
                expected);
      for (const size_t step : {size_t{0}, count - 1}) {
        std::vector<int64_t> before = tokens;
        before.insert(before.end(), expected.begin(),
                      expected.begin() + static_cast<std::ptrdiff_t>(step));
        const std::vector<double> logits = plain.Logits(before);
        for (size_t token = 0; token < logits.size(); ++token) {
          ASSERT_NEAR(static_cast<double>(generation.logits[step][i][token]), logits[token], 1e-3)
              << model.name << ", sequence " << i << ", step " << step << ", token " << token;
        }
      }
    }
  }

  std::unique_ptr<TestCluster> cluster_;
  std::string folder_;
  LoadedModel model_;
};

// tp partitions the key heads once, twice and four times; the other axis replicates all.
INSTANTIATE_TEST_SUITE_P(Meshes, ModelTest, ::testing::Values("tp=1", "tp=2", "dp=2,tp=2", "tp=4"),
                         [](const auto& mesh) {
                           return absl::StrReplaceAll(mesh.param, {{"=", ""}, {",", "_"}});
                         });

TEST_P(ModelTest, GeneratesTheTokensOfAPlainComputation) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(GetParam()));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  ASSERT_NO_FATAL_FAILURE(Load());
  const std::vector<std::vector<int32_t>> prompts = {
      {1, 5, 77, 200, 3, 9}, {255}, {0, 0, 17, 4, 4, 4, 8, 15, 16, 23, 42, 99, 98, 97, 96, 95, 94}};
  // The first steps compile kernels. Later tokens, and prompts of other lengths that are padded to
  // the same one, need no others.
  const double compiled_before = CompiledKernels();
  ASSERT_THAT(
      client::GenerateTokens(&cluster_->client(), model_,
                             {std::vector<int32_t>(20, 1), {2}, {3, 4}}, {.max_new_tokens = 2}),
      IsOk());
  const double compiled = CompiledKernels();
  EXPECT_GT(compiled, compiled_before);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Generation generation,
      client::GenerateTokens(&cluster_->client(), model_, prompts,
                             {.max_new_tokens = 64, .gives_logits = true}));
  EXPECT_EQ(CompiledKernels(), compiled);
  ASSERT_EQ(generation.logits.size(), 64U);
  EXPECT_EQ(generation.decode_steps, 63);
  const PlainLlama plain(kTinyLlama, ReadTensors(folder_));
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int64_t> tokens(prompts[i].begin(), prompts[i].end());
    const std::vector<int64_t> expected = plain.Greedy(tokens, 64);
    EXPECT_EQ(std::vector<int64_t>(generation.tokens[i].begin(), generation.tokens[i].end()),
              expected)
        << "sequence " << i;
    // The logits of the first step, of a step of decoding, and of the last one.
    for (const size_t step : {0U, 7U, 63U}) {
      std::vector<int64_t> before = tokens;
      before.insert(before.end(), expected.begin(),
                    expected.begin() + static_cast<std::ptrdiff_t>(step));
      const std::vector<double> logits = plain.Logits(before);
      for (size_t token = 0; token < logits.size(); ++token) {
        ASSERT_NEAR(static_cast<double>(generation.logits[step][i][token]), logits[token], 1e-3)
            << "sequence " << i << ", step " << step << ", token " << token;
      }
    }
  }
  // The state and the results are released.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto arrays,
                                 cluster_->client().arrays().ListArrays("", true));
  for (const client::Array& array : arrays) EXPECT_THAT(array.name, HasSubstr("tiny/"));
}

// Takes the results of no step.
class RefusingObserver final : public client::StepObserver {
 public:
  absl::Status BeforeStep(const Program& /*program*/,
                          absl::Span<const client::Operand> /*operands*/,
                          const client::CallOptions& /*options*/) override {
    return absl::OkStatus();
  }
  absl::Status AfterStep(const client::StepResult& /*result*/,
                         const client::CallOptions& /*options*/) override {
    return absl::DataLossError("refused");
  }
};

TEST_P(ModelTest, EmbedsSentencesAsAPlainComputationDoes) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(GetParam()));
  ASSERT_NO_FATAL_FAILURE(MakeModel("all-minilm-l6-v2"));
  ASSERT_NO_FATAL_FAILURE(Load());
  std::vector<std::vector<int32_t>> sentences = {{101, 7, 23, 99, 102}, {101, 102}};
  sentences.emplace_back(64, 5);  // as long as the model has positions
  // More than one step takes.
  while (sentences.size() < 70) sentences.push_back({101, static_cast<int32_t>(sentences.size())});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::SentenceEmbeddings result,
                                 client::EmbedSentences(&cluster_->client(), model_, sentences));
  ASSERT_EQ(result.embeddings.size(), sentences.size());
  EXPECT_EQ(result.steps.size(), 2U);
  const PlainTensors tensors = ReadTensors(folder_);
  for (const size_t i : {0U, 1U, 2U, 69U}) {
    const std::vector<double> expected =
        PlainSentenceEmbedding(kTinyBert, tensors, {sentences[i].begin(), sentences[i].end()});
    ASSERT_EQ(result.embeddings[i].size(), expected.size());
    for (size_t feature = 0; feature < expected.size(); ++feature) {
      ASSERT_NEAR(static_cast<double>(result.embeddings[i][feature]), expected[feature], 1e-4)
          << "sentence " << i;
    }
  }
  // A run that fails after a step releases the step's result, too.
  RefusingObserver observer;
  EXPECT_THAT(client::EmbedSentences(&cluster_->client(), model_, sentences, {}, &observer),
              StatusIs(absl::StatusCode::kDataLoss));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto arrays,
                                 cluster_->client().arrays().ListArrays("", true));
  for (const client::Array& array : arrays) EXPECT_THAT(array.name, HasSubstr("tiny/"));
}

using ModelCommandTest = ModelTest;

TEST_F(ModelCommandTest, GenerateLoadsAModelOnceAndFindsItByItsName) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  const std::vector<int64_t> expected =
      PlainLlama(kTinyLlama, ReadTensors(folder_)).Greedy({1, 2, 3}, 5);
  CommandResult result =
      cluster_->Run({"generate", "--model", folder_, "--tokens", "1,2,3", "--tokens", "9",
                     "--max-new", "5", "--mesh", "default", "--as", "small"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(StrCat(StrJoin(expected, ","), "\n")));
  EXPECT_THAT(result.out, HasSubstr("tokens/s"));

  // The weights are there: nothing is sent, and the arrays stay the same.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(model_, client::LoadModel(&cluster_->client(), folder_, "small"));
  EXPECT_GE(model_.reused_bytes, model_.size_bytes);

  const std::string logits = cluster_->folder() + "/logits.npy";
  result = cluster_->Run({"generate", "--model", "small", "--tokens", "1,2,3", "--max-new", "5",
                          "--logits", logits, "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(logits));
  EXPECT_THAT(file.View().shape(), ::testing::ElementsAre(1, 5, 256));
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["tokens"], nlohmann::json({expected}));
  EXPECT_EQ(json["decode_steps"], 4);

  // Each step is recomputed from the state before it.
  result = cluster_->Run({"generate", "--model", "small", "--tokens", "1,2,3", "--tokens", "9",
                          "--max-new", "3", "--verify", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json verified = nlohmann::json::parse(result.out);
  EXPECT_EQ(verified["tokens"][0], nlohmann::json({expected[0], expected[1], expected[2]}));
  EXPECT_EQ(verified["verified_steps"], 3);
  ASSERT_EQ(verified["verified"].size(), 2U) << "tokens, and state: " << result.out;
  EXPECT_EQ(verified["verified"][0]["checked"].get<int>() +
                verified["verified"][0]["undetermined"].get<int>(),
            6);
  EXPECT_EQ(verified["verified"][1]["what"], "state");
  EXPECT_GT(verified["verified"][1]["checked"], 0);
}

TEST_F(ModelCommandTest, WeightsOfI8AreMadeOnceAndFoundByName) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  CommandResult result = cluster_->Run({"generate", "--model", folder_, "--tokens", "1,2,3",
                                        "--max-new", "5", "--weight-dtype", "I8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(model_, client::FindModel(&cluster_->client(), "tiny"));
  // Seven in each layer, and that of the logits.
  EXPECT_EQ(model_.types.quantised.size(), 15U);
  EXPECT_EQ(model_.types.dtype, Dtype::kF32);
  PlainTensors tensors = ReadTensors(folder_);
  ASSERT_NO_FATAL_FAILURE(TakeQuantised(model_, tensors));
  EXPECT_THAT(
      result.out,
      HasSubstr(StrCat(StrJoin(PlainLlama(kTinyLlama, tensors).Greedy({1, 2, 3}, 5), ","), "\n")));
  // From here on, the arrays have no names: the run pins them, and lets them go.
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::HeldArrays held,
                                   client::HoldModel(&cluster_->client(), model_));
    ASSERT_EQ(cluster_->Run({"rm", "--tree", "tiny/"}).exit_code, 0);
    ASSERT_NO_FATAL_FAILURE(ExpectGenerates(model_, tensors, 8));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto left, cluster_->client().arrays().ListArrays("", true));
  EXPECT_THAT(left, ::testing::IsEmpty());
  const std::vector<std::vector<int32_t>> prompts = {{1}};
  EXPECT_THAT(client::GenerateTokens(&cluster_->client(), model_, prompts).status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound,
                       HasSubstr("the weights of the model \"tiny\"")));

  result = cluster_->Run({"generate", "--model", "tiny", "--tokens", "1", "--weight-dtype", "I8"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--weight-dtype are for the folder of a model"));
  result = cluster_->Run({"generate", "--model", folder_, "--tokens=1", "--weight-dtype", "I4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("\"I4\" is not I8"));
}

TEST_F(ModelCommandTest, LoadsModelsWithBiasesAndMergedWeights) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ModelConfig read,
                                 client::ReadModelConfig(folder_ + "/config.json"));
  const PlainTensors plain = ReadTensors(folder_);
  client::MeshClient* const mesh_client = &cluster_->client();

  // As Phi-3: heads of all devices are in one tensor.
  auto config = std::get<client::LlamaConfig>(read);
  config.is_merged = true;
  PlainTensors tensors = plain;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    const std::string attention = prefix + "self_attn.";
    Merge(tensors, attention + "qkv_proj.weight",
          {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
    Merge(tensors, prefix + "mlp.gate_up_proj.weight",
          {prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"});
  }
  const std::string merged = folder_ + "/merged";
  ASSERT_NO_FATAL_FAILURE(WriteModel(merged, config, tensors));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(model_, client::LoadModel(mesh_client, merged, "merged"));
  ASSERT_NO_FATAL_FAILURE(ExpectGenerates(model_, plain, 8));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(model_, client::FindModel(mesh_client, "merged"));
  ASSERT_NO_FATAL_FAILURE(ExpectGenerates(model_, plain, 2));
  client::LoadModelOptions quantised;
  quantised.quantises = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(model_,
                                 client::LoadModel(mesh_client, merged, "merged8", quantised));
  PlainTensors taken = plain;
  ASSERT_NO_FATAL_FAILURE(TakeQuantised(model_, taken));
  ASSERT_NO_FATAL_FAILURE(ExpectGenerates(model_, taken, 2));
  tensors.erase("model.layers.1.mlp.gate_up_proj.weight");
  ASSERT_NO_FATAL_FAILURE(WriteModel(merged, config, tensors));
  EXPECT_THAT(client::LoadModel(mesh_client, merged, "m").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile,
                       HasSubstr("lacks the tensor \"model.layers.1.mlp.gate_up_proj.weight\"")));

  // As Qwen2, and with biases everywhere.
  config.is_merged = false;
  config.has_input_biases = true;
  for (const bool is_everywhere : {false, true}) {
    config.has_output_bias = config.has_mlp_biases = is_everywhere;
    tensors = plain;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights,
                                   client::WeightsOf(config, client::ModelAxis()));
    for (const client::ModelWeight& weight : weights) {
      if (!weight.name.ends_with(".bias")) continue;
      PlainTensor& bias = tensors[weight.name];
      bias.shape = {weight.shape[0]};
      for (int64_t i = 0; i < weight.shape[0]; ++i) {
        bias.values.push_back(0.25F * static_cast<float>(i * 7 % 5 - 2));
      }
    }
    const std::string name = is_everywhere ? "biased" : "qwen2";
    ASSERT_NO_FATAL_FAILURE(WriteModel(folder_ + "/" + name, config, tensors));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(model_,
                                   client::LoadModel(mesh_client, folder_ + "/" + name, name));
    ASSERT_NO_FATAL_FAILURE(ExpectGenerates(model_, tensors, 8));
  }
}

TEST_F(ModelCommandTest, EmbedPrintsOrWritesEmbeddings) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("all-minilm-l6-v2"));
  const std::string out = cluster_->folder() + "/e.npy";
  CommandResult result = cluster_->Run({"embed", "--model", folder_, "--tokens", "101,7,102",
                                        "--mesh", "default", "--as", "encoder", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(out));
  EXPECT_THAT(file.View().shape(), ::testing::ElementsAre(1, 64));
  const std::vector<float> elements = FloatsOf(file.View().bytes());
  const std::vector<double> expected =
      PlainSentenceEmbedding(kTinyBert, ReadTensors(folder_), {101, 7, 102});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(elements[i]), expected[i], 1e-4);
  }
  // Weights of I8 change the direction of an embedding, whose length is 1, by little.
  const std::string rounded = cluster_->folder() + "/e8.npy";
  result = cluster_->Run({"embed", "--model", folder_, "--tokens", "101,7,102", "--as", "encoder8",
                          "--weight-dtype", "I8", "--out", rounded});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile rounded_file, NpyFile::Open(rounded));
  const std::vector<float> rounded_elements = FloatsOf(rounded_file.View().bytes());
  double cosine = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    cosine += static_cast<double>(rounded_elements[i]) * expected[i];
  }
  EXPECT_GT(cosine, 0.99);
  EXPECT_NE(rounded_elements, elements);

  result = cluster_->Run({"embed", "--model", "encoder", "--tokens", "101,7,102"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string line = result.out.substr(0, result.out.find('\n'));
  EXPECT_EQ(std::count(line.begin(), line.end(), ','), 63) << result.out;
  result = cluster_->Run({"embed", "--model", "encoder", "--tokens", "101,7,102", "--verify"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\n1 step verified:\nVerified 64 elements of output 0: "));
}

TEST_F(ModelCommandTest, AnInterruptedRunReleasesItsCachesAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  ASSERT_NO_FATAL_FAILURE(Load());
  const auto unnamed = [&] {
    const auto arrays = cluster_->client().arrays().ListArrays("", true);
    EXPECT_THAT(arrays, IsOk());
    return arrays.ok() ? std::count_if(arrays->begin(), arrays->end(),
                                       [](const client::Array& each) { return each.name.empty(); })
                       : -1;
  };
  ASSERT_EQ(unnamed(), 0);
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "generate", "--model=tiny", "--max-new=500",
                     "--address=" + cluster_->address()};
  for (int i = 0; i < 100; ++i) options.command.push_back("--tokens=1,2,3,4,5,6,7,8");
  options.log_path = cluster_->folder() + "/generate.log";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess process,
                                 client::ChildProcess::Start(options));
  ASSERT_TRUE(Eventually([&] { return unnamed() > 0; })) << client::ReadLog(options.log_path);
  ASSERT_THAT(client::SendSignal(process.id(), SIGINT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(process.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_THAT(process.Ended(), ::testing::Optional(HasSubstr("was killed by signal 2")));
  EXPECT_THAT(client::ReadLog(options.log_path),
              HasSubstr("shardmesh: interrupted: the model stays loaded, and nothing else"));
  // The session would expire after 30 seconds.
  EXPECT_TRUE(Eventually([&] { return unnamed() == 0; }, absl::Seconds(15)));
}

TEST_F(ModelCommandTest, MakesFoldersOfModelsOfAnySize) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=1"));
  const CommandResult made = cluster_->Run({"make-checkpoint", "--like", "llama", "--size", "40MiB",
                                            "--dtype", "BF16", "--folder", "--out", folder_});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ModelConfig config,
                                 client::ReadModelConfig(folder_ + "/config.json"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights,
                                 client::WeightsOf(config, client::ModelAxis()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(folder_ + "/model.safetensors"));
  std::vector<client::StoredTensor> tensors;
  for (const SafetensorsTensor& tensor : file.header().tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }
  EXPECT_THAT(client::CheckModelWeights(folder_, weights, tensors),
              IsOkAndHolds(client::WeightTypes{Dtype::kBF16, {}}));
}

TEST_F(ModelCommandTest, RefusalsNameWhatDoesNotFit) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=3"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  const auto refused = [&](const std::vector<std::string>& arguments, int exit_code,
                           const std::string& error) {
    const CommandResult result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, HasSubstr(error));
  };
  refused(
      {"generate", "--model", folder_, "--tokens", "1"}, 1,
      "num_attention_heads is 8, not divisible by the 3 devices of the mesh axis tp; use a mesh "
      "on which this axis has 1 or 2");
  refused({"generate", "--model", "none", "--tokens", "1"}, 1,
          "the cluster has no model \"none\", and there is no folder of this name");
  refused({"generate", "--model", "none", "--tokens", "1", "--as", "a"}, 2,
          "there is no folder \"none\"");
  refused({"generate", "--model", folder_, "--tokens", "1,x"}, 2, "--tokens: \"x\" is not a token");
  refused({"embed", "--model", folder_, "--tokens=1,-1"}, 2, "--tokens: \"-1\" is not a token");
  refused({"generate", "--model", folder_, "--tokens", "1", "--max-new", "0"}, 2,
          "--max-new: \"0\" is not a whole number from 1");

  const std::string path = folder_ + "/config.json";
  const std::string config = ReadFile(path);
  const auto write = [&](const std::string& from, const std::string& to) {
    ASSERT_THAT(config, HasSubstr(from));
    std::ofstream(path) << absl::StrReplaceAll(config, {{from, to}});
  };
  write("\"num_attention_heads\": 8", "\"num_attention_heads\": 9");
  refused({"generate", "--model", folder_, "--tokens", "1"}, 1,
          "num_key_value_heads is 4; it must divide num_attention_heads, which is 9");
  write("\"num_hidden_layers\": 2", "\"num_hidden_layers\": \"two\"");
  refused({"generate", "--model", folder_, "--tokens", "1"}, 1,
          "config.json: num_hidden_layers is \"two\"; it must be a whole number");
}

TEST_F(ModelCommandTest, AConfigurationThatDoesNotMatchItsTensorsNamesTheTensor) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  const std::string path = folder_ + "/config.json";
  const std::string config = ReadFile(path);
  std::ofstream(path) << absl::StrReplaceAll(
      config, {{"\"intermediate_size\": 160", "\"intermediate_size\": 162"}});
  CommandResult result = cluster_->Run({"generate", "--model", folder_, "--tokens", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("the tensor \"model.layers.0.mlp.gate_proj.weight\" has the shape (160, "
                        "64), and config.json requires (162, 64)"));
  std::ofstream(path) << absl::StrReplaceAll(
      config, {{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"}});
  result = cluster_->Run({"generate", "--model", folder_, "--tokens", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("lacks the tensor \"model.layers.2.input_layernorm.weight\""));
  // Nothing was put.
  EXPECT_EQ(cluster_->Run({"ls", "--output", "name"}).out, "");
}

TEST_F(ModelCommandTest, AModelIsNotLoadedForArgumentsThatDoNotFitIt) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2"));
  ASSERT_NO_FATAL_FAILURE(MakeModel("llama"));
  CommandResult result = cluster_->Run({"embed", "--model", folder_, "--tokens", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("is a Llama-shaped decoder, which generates tokens; use"));
  result = cluster_->Run({"generate", "--model", folder_, "--tokens", "256"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has the token 256; the model's tokens are 0 to 255"));
  // A file that cannot be written is found before the model is loaded and the steps run.
  const std::string nowhere = cluster_->folder() + "/none/x.npy";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"generate", "--model", folder_, "--tokens", "1", "--logits",
                                 nowhere},
        std::vector<std::string>{"embed", "--model", folder_, "--tokens", "1", "--out", nowhere}}) {
    result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(nowhere));
  }
  EXPECT_EQ(cluster_->Run({"ls", "--output", "name"}).out, "");

  result = cluster_->Run({"generate", "--model", folder_, "--tokens", "1", "--max-new", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"generate", "--model", "tiny", "--tokens", "256"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has the token 256; the model's tokens are 0 to 255"));
  result = cluster_->Run({"generate", "--model", "tiny", "--tokens", "1", "--max-new", "512"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("max_position_embeddings of the model is 512"));
}

}  // namespace
}  // namespace shardmesh::test
