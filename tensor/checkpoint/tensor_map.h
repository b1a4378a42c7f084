// Maps: which names, shapes and element types the tensors of a checkpoint get when they are loaded.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_TENSOR_MAP_H_
#define SHARDMESH_TENSOR_CHECKPOINT_TENSOR_MAP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sharding/pattern/replacement.h"
#include "sharding/shape.h"
#include "tensor/checkpoint/converted_tensor.h"
#include "tensor/checkpoint/tensor_source.h"
#include "tensor/dtype.h"
#include "tensor/tensor_elements.h"

namespace shardmesh {

// Upper bound on the rules of a map.
inline constexpr int64_t kMaxMapRules = 10'000;
// The scales of a tensor NAME that becomes I8 are the tensor NAME.scale.
inline constexpr char kScaleSuffix[] = ".scale";

// A rule for the tensors whose names a pattern matches. Its members apply in their order here.
struct TensorMapRule {
  // Replaces the first match in the name. A replacement of `\g<0>` keeps the name.
  PatternReplacement replacement;
  // Where the rule is written, such as `torch.yaml:3:5`, for messages.
  std::string place = {};
  // The tensor is not loaded.
  bool skip = false;
  // At most one of these: dimensions in reverse order; or dimension i of the result is dimension
  // permutation[i] of the tensor.
  bool reverse = false;
  std::vector<size_t> permutation = {};
  // Element type of the result. `channel` is set exactly if it is I8: the dimension of the result
  // of which each index has a scale of its own.
  std::optional<Dtype> dtype = std::nullopt;
  std::optional<size_t> channel = std::nullopt;
  // The shape that the result must have; nullopt: any extent of that dimension.
  std::optional<std::vector<std::optional<int64_t>>> shape = std::nullopt;
};

// An ordered list of rules. The first rule whose pattern is found in a tensor's name decides.
struct TensorMap {
  std::string source;  // the file of the map, for messages
  std::vector<TensorMapRule> rules;
  // Whether a tensor that no rule matches is an error. If false, such a tensor is kept as it is.
  bool refuse_unmatched = false;
};

// A tensor that is loaded.
struct MappedTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  // Index in TensorSource::tensors() of the tensor from which this one is made.
  size_t source = 0;
  // From the view of the source tensor to this tensor. If the source's indexes are reversed in the
  // file, the permutation turns them back.
  Conversion conversion = {};
  // This tensor has the scales of another one, which `conversion` makes from the same source.
  bool is_scale = false;
  bool is_renamed = false;
  bool is_transposed = false;
  bool is_converted = false;
};

struct MapOptions {
  // The map; null: all tensors are kept as they are.
  const TensorMap* map = nullptr;
  // The type to which F64, F32, F16 and BF16 tensors are converted whose rule names no type: F32,
  // F16 or BF16.
  std::optional<Dtype> float_dtype = std::nullopt;
};

// The tensors of a checkpoint as they are loaded: renamed, transposed, converted or left out.
// Immutable, and safe to share between threads.
class MappedCheckpoint {
 public:
  // Decides on all tensors from their names, shapes and types; reads no data. Errors are
  // INVALID_ARGUMENT, with the rule's place, before anything is loaded:
  //   - UNMATCHED_TENSOR: refuse_unmatched, and no rule matches a tensor;
  //   - SHAPE_MISMATCH: a permutation, channel or expected shape does not fit a tensor;
  //   - UNSUPPORTED_DTYPE: a tensor's type cannot be converted to the requested one;
  //   - BAD_FILE: two tensors get one name (the message has both), a name becomes empty or too
  //   long,
  //     or no tensor is left;
  //   - errors of PatternReplacement::Apply.
  static absl::StatusOr<MappedCheckpoint> Create(std::shared_ptr<const TensorSource> source,
                                                 const MapOptions& options = {});

  // In the order of the source. Scales follow their tensor.
  const std::vector<MappedTensor>& tensors() const { return tensors_; }
  // The names of the source's tensors that rules skip.
  const std::vector<std::string>& skipped() const { return skipped_; }
  // The places of the rules that decided on no tensor.
  const std::vector<std::string>& unused_rules() const { return unused_rules_; }
  const TensorSource& source() const { return *source_; }
  const SourceTensor& SourceOf(const MappedTensor& tensor) const {
    return source_->tensors()[tensor.source];
  }
  // Returns the sum of the sizes of tensors().
  int64_t size_bytes() const { return size_bytes_; }

  // Whether the elements of the tensor are the bytes of its file from SourceOf(tensor).offset_bytes
  // on, unchanged.
  static bool IsPlain(const MappedTensor& tensor) {
    return !tensor.is_scale && !tensor.is_converted && tensor.conversion.permutation.empty();
  }

  // Whether each element of the tensor is made from one element of its file alone, so that a worker
  // can make its tiles without the rest of the tensor. False for I8 with scales, and for scales.
  static bool IsElementwise(const MappedTensor& tensor) {
    return !tensor.is_scale && !tensor.conversion.channel.has_value();
  }

  // Returns a text that says how the tensor is made from the bytes in its file, for ArrayOrigin.
  std::string ConversionOf(const MappedTensor& tensor) const;
  // Returns how a reader of the file makes the tensor from the bytes there; nullopt: they are its
  // elements. Requires IsElementwise.
  std::optional<SourceConversion> ReadAs(const MappedTensor& tensor) const;

  // Returns the elements of each of tensors(). They are made while they are read, but for plain
  // ones, which are views of the mapped file. Valid as long as the source. Checks the source's
  // checksums, and reads the tensors that become I8 once, for their scales. Errors of
  // TensorSource::CheckIntegrity and ChannelScales, with the tensor's name.
  absl::StatusOr<std::vector<TensorElements>> Elements() const;

 private:
  class Builder;

  explicit MappedCheckpoint(std::shared_ptr<const TensorSource> source)
      : source_(std::move(source)) {}

  std::shared_ptr<const TensorSource> source_;
  std::vector<MappedTensor> tensors_;
  std::vector<std::string> skipped_;
  std::vector<std::string> unused_rules_;
  int64_t size_bytes_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_TENSOR_MAP_H_
