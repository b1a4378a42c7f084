// Transformers computed plainly: one token after the other, loops in double. Tests compare a
// cluster's results with them. Shares no code with the product.
#ifndef SHARDMESH_TESTS_TESTING_PLAIN_TRANSFORMER_H_
#define SHARDMESH_TESTS_TESTING_PLAIN_TRANSFORMER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shardmesh::test {

// A tensor, row-major.
struct PlainTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// The tensors of a checkpoint, by name.
using PlainTensors = std::map<std::string, PlainTensor>;

// The numbers of a Llama-shaped model that its tensors do not show.
struct PlainLlamaConfig {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  // The scaling of Llama 3: 0 in `rope_factor` means none.
  double rope_factor = 0;
  double rope_low_factor = 1;
  double rope_high_factor = 4;
  double rope_original_positions = 8192;
};

// A Llama-shaped decoder with the tensor names of HuggingFace's checkpoints. `lm_head.weight` may
// be missing: the embeddings are then used for it. Linear layers have the biases that are there.
// Throws std::out_of_range if another tensor is
// missing.
class PlainLlama {
 public:
  PlainLlama(const PlainLlamaConfig& config, PlainTensors tensors);

  // Returns the logits after the last of `tokens`, at least one.
  std::vector<double> Logits(const std::vector<int64_t>& tokens) const;
  // Returns `count` tokens that follow `prompt`, each with the largest logit. Of equal logits, that
  // of the lowest token counts.
  std::vector<int64_t> Greedy(std::vector<int64_t> prompt, int64_t count) const;

 private:
  // The keys and values of one layer, by position.
  struct Cache {
    std::vector<std::vector<double>> keys;
    std::vector<std::vector<double>> values;
  };

  const PlainTensor& Get(int64_t layer, const std::string& name) const;
  std::vector<double> Linear(int64_t layer, const std::string& name,
                             const std::vector<double>& x) const;
  std::vector<double> Attention(int64_t layer, const std::vector<double>& x, Cache& cache) const;
  std::vector<double> FeedForward(int64_t layer, const std::vector<double>& x) const;
  void Rotate(std::vector<double>& heads, int64_t position) const;
  std::vector<double> Next(int64_t token, std::vector<Cache>& caches) const;

  const PlainLlamaConfig config_;
  const PlainTensors tensors_;
  std::vector<double> frequencies_;
};

// The numbers of a BERT-like model that its tensors do not show.
struct PlainBertConfig {
  int64_t layers = 0;
  int64_t heads = 0;
  double norm_epsilon = 1e-12;
};

// Returns the embedding of a sentence: the mean of the last layer's rows, with length 1. The
// activation is the exact GELU. `tensors` has the names of all-MiniLM-L6-v2. Throws
// std::out_of_range if one is missing.
std::vector<double> PlainSentenceEmbedding(const PlainBertConfig& config,
                                           const PlainTensors& tensors,
                                           const std::vector<int64_t>& tokens);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_PLAIN_TRANSFORMER_H_
