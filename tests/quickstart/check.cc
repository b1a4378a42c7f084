// An independent check of what a cluster computed and gave back. Shares no code with the product.
//
//   quickstart-check CHECKPOINT --input X.npy --result Y.npy [--tolerance T]
//       [--embeddings E.npy --tokens 101,7592,102 ...] [--compare NAME FILE.npy]...
//
// Computes Y' = gelu(X W1ᵀ + b1) W2ᵀ + b2, the feed-forward block of layer 0, by plain loops in
// double, with the exact GELU, and compares Y with it; compares each gathered tensor with the
// checkpoint's, byte for byte. Computes the embedding of each sentence of --tokens by the whole
// model, all-MiniLM-L6-v2, in the same way, and compares the rows of E with them. Exit code 1 if
// the largest error, relative to the largest value, is above the tolerance (default 1e-5), an
// element of E is off by more than 1e-4, or a tensor differs; 2 if something cannot be read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/plain_transformer.h"

namespace {

constexpr char kLayer[] = "encoder.layer.0.";

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;

  double at(int64_t row, int64_t column) const { return values[row * columns + column]; }
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the text from the end of `begin` to `end`, of which `begin` is the first after
// `position`.
std::string Between(const std::string& text, size_t position, const std::string& begin, char end) {
  const size_t found = text.find(begin, position);
  if (found == std::string::npos) throw std::runtime_error("no " + begin + " in a header");
  const size_t from = found + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

std::vector<int64_t> Integers(const std::string& text) {
  std::vector<int64_t> integers;
  for (size_t i = 0; i < text.size();) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) {
      ++i;
      continue;
    }
    size_t length = 0;
    integers.push_back(std::stoll(text.substr(i), &length));
    i += length;
  }
  return integers;
}

struct Tensor {
  std::vector<int64_t> shape;
  std::string bytes;
};

// A safetensors file: eight bytes with the header's length, a JSON header, the tensors.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& path) : bytes_(ReadFile(path)) {
    uint64_t length = 0;
    if (bytes_.size() < sizeof(length)) throw std::runtime_error(path + " is cut off");
    std::memcpy(&length, bytes_.data(), sizeof(length));
    data_begin_ = sizeof(length) + length;
    if (data_begin_ > bytes_.size()) throw std::runtime_error(path + " is cut off");
    header_ = bytes_.substr(sizeof(length), length);
    std::erase(header_, ' ');  // some writers put one after each colon
  }

  Tensor Get(const std::string& name) const {
    const size_t entry = header_.find('"' + name + '"');
    if (entry == std::string::npos) throw std::runtime_error("the checkpoint has no " + name);
    const auto offsets = Integers(Between(header_, entry, "\"data_offsets\":[", ']'));
    return {Integers(Between(header_, entry, "\"shape\":[", ']')),
            bytes_.substr(data_begin_ + offsets.at(0), offsets.at(1) - offsets.at(0))};
  }

 private:
  const std::string bytes_;
  std::string header_;
  size_t data_begin_ = 0;
};

// A .npy file of version 1 or 2, row-major: magic, version, the header's length, the header, the
// values.
Tensor ReadNpy(const std::string& path) {
  const std::string bytes = ReadFile(path);
  if (bytes.size() < 12 || bytes.compare(0, 6, "\x93NUMPY") != 0) {
    throw std::runtime_error(path + " is no .npy file");
  }
  const size_t length_bytes = bytes[6] == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  const std::string header = bytes.substr(8 + length_bytes, length);
  if (header.find("True") != std::string::npos) throw std::runtime_error(path + " is column-major");
  return {Integers(Between(header, header.find("'shape'"), "(", ')')),
          bytes.substr(8 + length_bytes + length)};
}

Matrix AsMatrix(const Tensor& tensor, const std::string& name) {
  if (tensor.shape.empty() || tensor.shape.size() > 2)
    throw std::runtime_error(name + " is no matrix");
  Matrix matrix;
  matrix.rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
  matrix.columns = tensor.shape.back();
  matrix.values.resize(matrix.rows * matrix.columns);
  if (tensor.bytes.size() != matrix.values.size() * sizeof(float)) {
    throw std::runtime_error(name + " is not of 32-bit floats");
  }
  std::memcpy(matrix.values.data(), tensor.bytes.data(), tensor.bytes.size());
  return matrix;
}

// Returns x weightᵀ + bias, rows times outputs.
std::vector<double> Linear(const std::vector<double>& x, int64_t rows, const Matrix& weight,
                           const Matrix& bias) {
  if (bias.columns != weight.rows || static_cast<int64_t>(x.size()) != rows * weight.columns) {
    throw std::runtime_error("the shapes of input, weight and bias do not fit");
  }
  std::vector<double> y(rows * weight.rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t output = 0; output < weight.rows; ++output) {
      double sum = bias.at(0, output);
      for (int64_t k = 0; k < weight.columns; ++k) {
        sum += x[row * weight.columns + k] * weight.at(output, k);
      }
      y[row * weight.rows + output] = sum;
    }
  }
  return y;
}

std::vector<double> FeedForward(const Checkpoint& checkpoint, const Matrix& input) {
  const auto get = [&](const std::string& name) {
    return AsMatrix(checkpoint.Get(kLayer + name), kLayer + name);
  };
  std::vector<double> hidden =
      Linear(std::vector<double>(input.values.begin(), input.values.end()), input.rows,
             get("intermediate.dense.weight"), get("intermediate.dense.bias"));
  for (double& x : hidden) x = 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return Linear(hidden, input.rows, get("output.dense.weight"), get("output.dense.bias"));
}

bool CheckFeedForward(const Checkpoint& checkpoint, const std::string& input_path,
                      const std::string& result_path, double tolerance) {
  const Matrix input = AsMatrix(ReadNpy(input_path), input_path);
  const Matrix result = AsMatrix(ReadNpy(result_path), result_path);
  const std::vector<double> expected = FeedForward(checkpoint, input);
  if (result.values.size() != expected.size() || result.rows != input.rows) {
    std::printf("feed-forward: the result is %ld x %ld, not of the expected shape\n",
                static_cast<long>(result.rows), static_cast<long>(result.columns));
    return false;
  }
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(result.values[i] - expected[i]);
    largest = std::max(largest, std::abs(expected[i]));
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
  }
  const double relative = error / largest;
  const bool good = relative <= tolerance;
  std::printf(
      "feed-forward: %ld x %ld values, largest error %.3g, relative to the largest value %.3g: %s "
      "%.3g\n",
      static_cast<long>(result.rows), static_cast<long>(result.columns), error, relative,
      good ? "within" : "ABOVE", tolerance);
  return good;
}

bool CheckTensor(const Checkpoint& checkpoint, const std::string& name, const std::string& path) {
  const Tensor expected = checkpoint.Get(name);
  const Tensor gathered = ReadNpy(path);
  const bool good = expected.shape == gathered.shape && expected.bytes == gathered.bytes;
  std::printf("%s: %zu bytes %s\n", name.c_str(), expected.bytes.size(),
              good ? "identical" : "DIFFER from the checkpoint's");
  return good;
}

// Returns the tensors of all-MiniLM-L6-v2 that its embeddings need.
shardmesh::test::PlainTensors ModelTensors(const Checkpoint& checkpoint, int64_t layers) {
  std::vector<std::string> names = {"word_embeddings", "position_embeddings",
                                    "token_type_embeddings"};
  for (std::string& name : names) name = "embeddings." + name + ".weight";
  std::vector<std::string> pairs = {"embeddings.LayerNorm"};
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const char* name : {"attention.self.query", "attention.self.key", "attention.self.value",
                             "attention.output.dense", "attention.output.LayerNorm",
                             "intermediate.dense", "output.dense", "output.LayerNorm"}) {
      pairs.push_back("encoder.layer." + std::to_string(layer) + "." + name);
    }
  }
  for (const std::string& pair : pairs) {
    names.push_back(pair + ".weight");
    names.push_back(pair + ".bias");
  }
  shardmesh::test::PlainTensors tensors;
  for (const std::string& name : names) {
    const Tensor tensor = checkpoint.Get(name);
    tensors[name] = {tensor.shape, AsMatrix(tensor, name).values};
  }
  return tensors;
}

bool CheckEmbeddings(const Checkpoint& checkpoint, const std::string& path,
                     const std::vector<std::vector<int64_t>>& sentences) {
  constexpr double kTolerance = 1e-4;
  const shardmesh::test::PlainBertConfig config = {.layers = 6, .heads = 12};
  const Matrix embeddings = AsMatrix(ReadNpy(path), path);
  const shardmesh::test::PlainTensors tensors = ModelTensors(checkpoint, config.layers);
  if (embeddings.rows != static_cast<int64_t>(sentences.size())) {
    std::printf("embeddings: %ld rows for %zu sentences\n", static_cast<long>(embeddings.rows),
                sentences.size());
    return false;
  }
  double error = 0;
  for (int64_t row = 0; row < embeddings.rows; ++row) {
    const std::vector<double> expected =
        shardmesh::test::PlainSentenceEmbedding(config, tensors, sentences[row]);
    if (static_cast<int64_t>(expected.size()) != embeddings.columns) return false;
    for (int64_t column = 0; column < embeddings.columns; ++column) {
      const double difference = std::abs(embeddings.at(row, column) - expected[column]);
      error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    }
  }
  const bool good = error <= kTolerance;
  std::printf("embeddings: %zu sentences, largest error %.3g: %s %.3g\n", sentences.size(), error,
              good ? "within" : "ABOVE", kTolerance);
  return good;
}

int Main(const std::vector<std::string>& words) {
  std::string checkpoint_path, input_path, result_path, embeddings_path;
  std::vector<std::vector<int64_t>> sentences;
  double tolerance = 1e-5;
  std::vector<std::pair<std::string, std::string>> tensors;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto next = [&] {
      if (++i == words.size()) throw std::runtime_error(words[i - 1] + " needs a value");
      return words[i];
    };
    if (words[i] == "--input") {
      input_path = next();
    } else if (words[i] == "--result") {
      result_path = next();
    } else if (words[i] == "--embeddings") {
      embeddings_path = next();
    } else if (words[i] == "--tokens") {
      sentences.push_back(Integers(next()));
    } else if (words[i] == "--tolerance") {
      tolerance = std::stod(next());
    } else if (words[i] == "--compare") {
      const std::string name = next();
      tensors.emplace_back(name, next());
    } else {
      checkpoint_path = words[i];
    }
  }
  if (checkpoint_path.empty() || input_path.empty() != result_path.empty()) {
    throw std::runtime_error(
        "usage: quickstart-check CHECKPOINT --input X.npy --result Y.npy [--tolerance T] "
        "[--embeddings E.npy --tokens 101,7592,102 ...] [--compare NAME FILE.npy]...");
  }
  const Checkpoint checkpoint(checkpoint_path);
  bool good = true;
  if (!input_path.empty()) good &= CheckFeedForward(checkpoint, input_path, result_path, tolerance);
  if (!embeddings_path.empty()) good &= CheckEmbeddings(checkpoint, embeddings_path, sentences);
  for (const auto& [name, path] : tensors) good &= CheckTensor(checkpoint, name, path);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "quickstart-check: %s\n", e.what());
    return 2;
  }
}
