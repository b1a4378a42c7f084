// Gathers, converts and writes runs of elements, box by box.
#include "tensor/checkpoint/converted_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "absl/container/inlined_vector.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/copy.h"
#include "tensor/float_convert.h"

namespace shardmesh {
namespace {

// The most elements that are converted at once. Two buffers of this many elements fit in a core's
// first cache.
constexpr int64_t kRunElements = 512;
// In a transposition, the number of source rows that are read side by side. Their cache lines stay
// in the first cache until all elements of each line have been used.
constexpr int64_t kBlockRows = 128;
constexpr float kLargestI8 = 127.0f;
constexpr uint32_t kF32InfinityBits = 0x7F800000;

struct alignas(64) RunBuffer {
  char bytes[static_cast<size_t>(kRunElements) * 8];

  template <typename Element>
  absl::Span<Element> As(int64_t count) {
    return {reinterpret_cast<Element*>(bytes), static_cast<size_t>(count)};
  }
};

absl::Status UnsupportedDtype(Dtype dtype, std::string_view message) {
  return InvalidArgument(Reason::kUnsupportedDtype, message, {{fact::kDtype, DtypeName(dtype)}});
}

// Converts `count` elements of a convertible float type to F32.
void ToF32(Dtype dtype, RunBuffer& from, int64_t count, absl::Span<float> to) {
  switch (dtype) {
    case Dtype::kF64:
      return ConvertF64ToF32(from.As<const double>(count), to);
    case Dtype::kF16:
      return ConvertF16ToF32(from.As<const uint16_t>(count), to);
    case Dtype::kBF16:
      return ConvertBF16ToF32(from.As<const uint16_t>(count), to);
    default:
      std::memcpy(to.data(), from.bytes, to.size() * sizeof(float));
  }
}

// Converts `count` elements between two convertible float types that differ.
void ConvertFloats(Dtype from_type, RunBuffer& from, int64_t count, Dtype to_type, RunBuffer& to) {
  if (to_type == Dtype::kF32) {
    return ToF32(from_type, from, count, to.As<float>(count));
  }
  if (from_type == Dtype::kF64) {
    return to_type == Dtype::kF16
               ? ConvertF64ToF16(from.As<const double>(count), to.As<uint16_t>(count))
               : ConvertF64ToBF16(from.As<const double>(count), to.As<uint16_t>(count));
  }
  RunBuffer floats;
  ToF32(from_type, from, count, floats.As<float>(count));
  to_type == Dtype::kF16 ? ConvertF32ToF16(floats.As<const float>(count), to.As<uint16_t>(count))
                         : ConvertF32ToBF16(floats.As<const float>(count), to.As<uint16_t>(count));
}

// Copies `count` elements that lie `stride_bytes` apart to adjacent places.
template <size_t kSize>
void GatherSized(const char* from, int64_t stride_bytes, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, kSize);
    from += stride_bytes;
    to += kSize;
  }
}

void GatherElements(const char* from, int64_t stride, int64_t size_bytes, int64_t count, char* to) {
  if (stride == 1) {
    return CopyBytes(to, from, static_cast<size_t>(count * size_bytes));
  }
  switch (size_bytes) {
    case 1:
      return GatherSized<1>(from, stride, count, to);
    case 2:
      return GatherSized<2>(from, stride * 2, count, to);
    case 4:
      return GatherSized<4>(from, stride * 4, count, to);
    default:
      return GatherSized<8>(from, stride * 8, count, to);
  }
}

int64_t BytesOf(Dtype dtype) { return BitsPerElement(dtype) / 8; }

}  // namespace

absl::Status CheckChannels(absl::Span<const int64_t> shape, size_t channel) {
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (!is_empty || shape[channel] <= kMaxEmptyChannels) return absl::OkStatus();
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat("a tensor of shape ", ShapeToString(shape), " has no elements, and would have ",
             shape[channel], " scales; at most ", kMaxEmptyChannels,
             " are made for nothing: keep its type, or skip it"),
      {{fact::kHave, shape[channel]}, {fact::kNeed, kMaxEmptyChannels}});
}

absl::StatusOr<std::vector<float>> ChannelScales(const TensorView& source, size_t channel) {
  const Shape& shape = source.shape();
  SHARDMESH_RETURN_IF_ERROR(CheckChannels(shape, channel));
  const int64_t channels = shape[channel];
  // Without elements, the product of the other extents may be too large for any number.
  if (source.bytes().empty()) return std::vector<float>(static_cast<size_t>(channels), 1.0f);
  int64_t outer = 1;
  int64_t inner = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    (dim < channel ? outer : inner) *= dim == channel ? 1 : shape[dim];
  }
  std::vector<uint32_t> largest(static_cast<size_t>(channels), 0);
  const int64_t element_bytes = BytesOf(source.dtype());
  const char* from = source.bytes().data();
  RunBuffer buffer;
  RunBuffer floats;
  const auto read = [&](int64_t count) {
    std::memcpy(buffer.bytes, from, static_cast<size_t>(count * element_bytes));
    from += count * element_bytes;
    ToF32(source.dtype(), buffer, count, floats.As<float>(count));
    return floats.As<const float>(count);
  };
  for (int64_t row = 0; row < outer; ++row) {
    if (inner == 1) {
      for (int64_t done = 0; done < channels;) {
        const int64_t count = std::min(kRunElements, channels - done);
        RaiseMagnitudeBits(read(count), absl::MakeSpan(largest).subspan(
                                            static_cast<size_t>(done), static_cast<size_t>(count)));
        done += count;
      }
      continue;
    }
    for (uint32_t& magnitude : largest) {
      for (int64_t done = 0; done < inner;) {
        const int64_t count = std::min(kRunElements, inner - done);
        magnitude = std::max(magnitude, LargestMagnitudeBits(read(count)));
        done += count;
      }
    }
  }
  std::vector<float> scales;
  scales.reserve(largest.size());
  for (size_t i = 0; i < largest.size(); ++i) {
    if (largest[i] >= kF32InfinityBits) {
      return UnsupportedDtype(
          source.dtype(),
          StrCat("index ", i, " of dimension ", channel, " has ",
                 largest[i] == kF32InfinityBits ? "a value that is infinite as F32" : "a NaN",
                 ", for which I8 has no number; load the tensor as BF16"));
    }
    const float scale = std::bit_cast<float>(largest[i]) / kLargestI8;
    scales.push_back(largest[i] == 0 ? 1.0f : std::max(scale, 0x1p-149f));
  }
  return scales;
}

absl::StatusOr<std::shared_ptr<const ConvertedTensor>> ConvertedTensor::Create(
    const TensorView& source, const Conversion& conversion, std::vector<float> scales) {
  const Dtype dtype = conversion.dtype.value_or(source.dtype());
  if (!CanConvert(source.dtype(), dtype)) {
    return UnsupportedDtype(source.dtype(), StrCat(DtypeName(source.dtype()),
                                                   " cannot be converted to ", DtypeName(dtype)));
  }
  if (!conversion.permutation.empty() && BitsPerElement(source.dtype()) % 8 != 0) {
    return UnsupportedDtype(source.dtype(),
                            StrCat("elements of ", DtypeName(source.dtype()),
                                   " are smaller than a byte and cannot be transposed"));
  }
  std::shared_ptr<ConvertedTensor> tensor(new ConvertedTensor(source, dtype));
  SHARDMESH_ASSIGN_OR_RETURN(tensor->shape_, PermutedShape(source.shape(), conversion.permutation));
  const size_t rank = tensor->shape_.size();
  std::vector<int64_t> strides(rank);
  // The strides of a tensor without elements are not used, and may be too large for any number.
  int64_t stride = source.bytes().empty() ? 0 : 1;
  for (size_t dim = rank; dim-- > 0;) {
    strides[dim] = stride;
    stride *= source.shape()[dim];
  }
  for (size_t dim = 0; dim < rank; ++dim) {
    tensor->strides_.push_back(
        strides[conversion.permutation.empty() ? dim : conversion.permutation[dim]]);
  }
  if (dtype == Dtype::kI8 && source.dtype() != Dtype::kI8) {
    const size_t channel = conversion.channel.value_or(rank);
    if (channel >= rank || scales.size() != static_cast<size_t>(tensor->shape_[channel])) {
      return InvalidArgument(Reason::kShapeMismatch,
                             StrCat("a tensor of shape ", ShapeToString(tensor->shape_),
                                    " has no channel dimension with ", scales.size(), " scales"),
                             {{fact::kHave, scales.size()}});
    }
    tensor->channel_ = channel;
    tensor->scales_ = std::move(scales);
  }
  return tensor;
}

// A box of indices of the result: per dimension the first index and the number of indices.
struct ConvertedTensor::Box {
  std::array<int64_t, kMaxRank> start{};
  std::array<int64_t, kMaxRank> count{};
};

// Writes boxes of one tile to adjacent places of the output.
class ConvertedTensor::Writer {
 public:
  Writer(const ConvertedTensor& tensor, const Tile& tile, char* out)
      : tensor_(tensor), tile_(tile), out_(out) {}

  // Writes elements [begin, end) of the sub-tile that `box` fixes in the dimensions below `dim`.
  // `inner` is the number of the sub-tile's elements.
  void Write(Box box, size_t dim, int64_t inner, int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (begin == 0 && end == inner) {
      for (size_t i = dim; i < rank(); ++i) {
        box.start[i] = tile_.ranges[i].start;
        box.count[i] = tile_.ranges[i].size();
      }
      return WriteBox(box);
    }
    const int64_t row = inner / tile_.ranges[dim].size();
    int64_t first = begin / row;
    const int64_t last = end / row;
    const auto fix = [&](int64_t index, int64_t count) {
      box.start[dim] = tile_.ranges[dim].start + index;
      box.count[dim] = count;
    };
    if (first == last) {
      fix(first, 1);
      return Write(box, dim + 1, row, begin - first * row, end - first * row);
    }
    if (begin % row != 0) {
      fix(first, 1);
      Write(box, dim + 1, row, begin % row, row);
      ++first;
    }
    if (first < last) {
      fix(first, last - first);
      for (size_t i = dim + 1; i < rank(); ++i) {
        box.start[i] = tile_.ranges[i].start;
        box.count[i] = tile_.ranges[i].size();
      }
      WriteBox(box);
    }
    if (end % row != 0) {
      fix(last, 1);
      Write(box, dim + 1, row, 0, end % row);
    }
  }

 private:
  // A dimension of the box with more than one index.
  struct Loop {
    int64_t count = 1;
    int64_t stride = 0;      // in elements of the source
    int64_t out_stride = 0;  // in elements of the result
    bool is_channel = false;
  };

  size_t rank() const { return tensor_.shape_.size(); }

  void WriteBox(const Box& box) {
    int64_t offset = 0;
    int64_t elements = 1;
    channel_ = 0;
    absl::InlinedVector<Loop, 8> loops;  // innermost first
    for (size_t dim = rank(); dim-- > 0;) {
      const bool is_channel = tensor_.channel_ == dim;
      const int64_t stride = tensor_.strides_[dim];
      offset += box.start[dim] * stride;
      channel_ = is_channel ? box.start[dim] : channel_;
      if (box.count[dim] > 1) {
        if (!loops.empty() && !is_channel && !loops.back().is_channel &&
            stride == loops.back().count * loops.back().stride) {
          loops.back().count *= box.count[dim];
        } else {
          loops.push_back({box.count[dim], stride, elements, is_channel});
        }
      }
      elements *= box.count[dim];
    }
    if (loops.empty()) loops.push_back({1, 1, 1, false});
    const Loop row = loops.front();
    loops.erase(loops.begin());
    // If a row lies scattered in the source, find the dimension along which the source is dense.
    Loop dense;
    if (row.stride != 1 && !loops.empty()) {
      const auto best =
          std::min_element(loops.begin(), loops.end(),
                           [](const Loop& a, const Loop& b) { return a.stride < b.stride; });
      if (best->stride < row.stride) {
        dense = *best;
        loops.erase(best);
      }
    }
    WriteLoops(loops, loops.size(), row, dense, offset, 0);
    out_ += elements * BytesOf(tensor_.dtype_);
  }

  void WriteLoops(absl::Span<const Loop> loops, size_t left, const Loop& row, const Loop& dense,
                  int64_t offset, int64_t out_offset) {
    if (left == 0) return WriteBlock(row, dense, offset, out_offset);
    const Loop& loop = loops[left - 1];
    for (int64_t i = 0; i < loop.count; ++i) {
      WriteLoops(loops, left - 1, row, dense, offset + i * loop.stride,
                 out_offset + i * loop.out_stride);
      channel_ += loop.is_channel ? 1 : 0;
    }
    channel_ -= loop.is_channel ? loop.count : 0;
  }

  void WriteBlock(const Loop& row, const Loop& dense, int64_t offset, int64_t out_offset) {
    const int64_t step = dense.count > 1 ? kBlockRows : row.count;
    for (int64_t begin = 0; begin < row.count; begin += step) {
      const int64_t count = std::min(step, row.count - begin);
      for (int64_t i = 0; i < dense.count; ++i) {
        WriteRun(offset + begin * row.stride + i * dense.stride, row.stride, count,
                 channel_ + (dense.is_channel ? i : 0) + (row.is_channel ? begin : 0),
                 row.is_channel,
                 out_ + (out_offset + begin + i * dense.out_stride) * BytesOf(tensor_.dtype_));
      }
    }
  }

  // Writes `count` elements from element `offset` of the source on.
  void WriteRun(int64_t offset, int64_t stride, int64_t count, int64_t channel,
                bool channels_differ, char* to) {
    const Dtype from_type = tensor_.source_.dtype();
    const int64_t from_bytes = BytesOf(from_type);
    const int64_t to_bytes = BytesOf(tensor_.dtype_);
    const char* from = tensor_.source_.bytes().data() + offset * from_bytes;
    if (from_type == tensor_.dtype_) {
      return GatherElements(from, stride, from_bytes, count, to);
    }
    RunBuffer in;
    RunBuffer out;
    for (int64_t done = 0; done < count;) {
      const int64_t run = std::min(kRunElements, count - done);
      GatherElements(from + done * stride * from_bytes, stride, from_bytes, run, in.bytes);
      if (tensor_.channel_.has_value()) {
        RunBuffer floats;
        ToF32(from_type, in, run, floats.As<float>(run));
        const auto scales = absl::MakeConstSpan(tensor_.scales_)
                                .subspan(static_cast<size_t>(channel),
                                         channels_differ ? static_cast<size_t>(run) : 1);
        QuantiseF32ToI8(floats.As<const float>(run), scales, out.As<int8_t>(run));
        channel += channels_differ ? run : 0;
      } else {
        ConvertFloats(from_type, in, run, tensor_.dtype_, out);
      }
      std::memcpy(to + done * to_bytes, out.bytes, static_cast<size_t>(run * to_bytes));
      done += run;
    }
  }

  const ConvertedTensor& tensor_;
  const Tile& tile_;
  char* out_;
  int64_t channel_ = 0;  // index of the channel at the current place
};

absl::Status ConvertedTensor::Fill(const Tile& tile, int64_t offset_bytes,
                                   absl::Span<char> out) const {
  if (dtype_ == source_.dtype() && BitsPerElement(dtype_) % 8 != 0) {
    return CopyTileBytes(source_, tile, offset_bytes, out);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region, TileRegion::Create(dtype_, shape_, tile));
  const int64_t element_bytes = BytesOf(dtype_);
  const int64_t size_bytes = static_cast<int64_t>(out.size());
  if (offset_bytes < 0 || offset_bytes > region.size_bytes() ||
      size_bytes > region.size_bytes() - offset_bytes || offset_bytes % element_bytes != 0 ||
      size_bytes % element_bytes != 0) {
    return InvalidArgument(
        Reason::kBadTile,
        StrCat(size_bytes, " bytes at offset ", offset_bytes, " are not whole elements within the ",
               region.size_bytes(), " bytes of tile ", tile.ToString()));
  }
  Writer(*this, tile, out.data())
      .Write({}, 0, tile.element_count(), offset_bytes / element_bytes,
             (offset_bytes + size_bytes) / element_bytes);
  return absl::OkStatus();
}

}  // namespace shardmesh
