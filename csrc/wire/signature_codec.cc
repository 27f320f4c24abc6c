#include "csrc/wire/signature_codec.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/wire/text.h"

namespace hvl::wire {
namespace {

constexpr auto kMaxInt64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Fewest bytes of a tensor; see Reader::Count.
constexpr std::size_t kTensorBytes = 3;

// Flags of a signature.
constexpr std::uint8_t kHasPrescale = 1;
constexpr std::uint8_t kHasPostscale = 2;

bool IsDType(std::uint8_t value) {
  switch (static_cast<DType>(value)) {
#define HVL_X(enumerator, number, name, bytes) case DType::enumerator:
    HVL_DTYPES(HVL_X)
#undef HVL_X
    return true;
  }
  return false;
}

double ReadScale(Reader& in) {
  const double value = in.Double();
  if (!std::isfinite(value)) in.Fail("a scale factor that is not finite");
  return value;
}

TensorSignature ReadTensor(Reader& in) {
  TensorSignature tensor;
  const std::uint8_t dtype = in.U8();
  if (!IsDType(dtype)) in.Fail(Format("element type {}", dtype));
  tensor.dtype = static_cast<DType>(dtype);
  tensor.layout = static_cast<Layout>(in.Bounded(kMaxUint32, "a layout"));
  tensor.shape = ReadDims(in, kMaxDimensions);
  return tensor;
}

// The members of a process set ascend: each is sent as the gap to the one before, so that no other
// order can be spelled.

void WriteRanks(Writer& out, const std::vector<std::int32_t>& ranks) {
  out.Varint(ranks.size());
  std::int64_t next = 0;
  for (const std::int32_t rank : ranks) {
    HVL_CHECK(rank >= next, "the ranks of a process set ascend");
    out.Varint(static_cast<std::uint64_t>(rank - next));
    next = std::int64_t{rank} + 1;
  }
}

std::vector<std::int32_t> ReadRanks(Reader& in) {
  std::vector<std::int32_t> ranks;
  const std::size_t count = in.Count(1, "ranks");
  ranks.reserve(count);
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t rank = next + in.Bounded(kMaxRank, "a gap between ranks");
    if (rank > kMaxRank) in.Fail(Format("rank {}", rank));
    if (!in.ok()) return {};
    ranks.push_back(static_cast<std::int32_t>(rank));
    next = rank + 1;
  }
  return ranks;
}

/// What is wrong with the process set of a signature; empty = nothing.
std::string_view ProcessSetFault(const Signature& signature) {
  if (signature.kind == OpKind::kProcessSet && signature.process_set == kWorldSet) {
    return "process set 0 is the world, which cannot be changed";
  }
  if (signature.kind == OpKind::kJoin && signature.process_set != kWorldSet) {
    return "join() works on the world only, not in a process set";
  }
  return {};
}

}  // namespace

void WriteDims(Writer& out, std::span<const std::int64_t> dims) {
  out.Varint(dims.size());
  for (const std::int64_t dim : dims) out.Varint(static_cast<std::uint64_t>(dim));
}

std::vector<std::int64_t> ReadDims(Reader& in, std::size_t max_count) {
  std::vector<std::int64_t> dims;
  const std::size_t count = in.Count(1, "dimensions");
  if (count > max_count) {
    in.Fail(Format("{} dimensions, the most is {}", count, max_count));
    return dims;
  }
  dims.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    dims.push_back(static_cast<std::int64_t>(in.Bounded(kMaxInt64, "a dimension")));
  }
  return dims;
}

void WriteSignature(Writer& out, const Signature& signature) {
  std::uint8_t flags = 0;
  if (signature.prescale != 1.0) flags |= kHasPrescale;
  if (signature.postscale != 1.0) flags |= kHasPostscale;
  out.U8(static_cast<std::uint8_t>(signature.kind));
  out.U8(static_cast<std::uint8_t>(signature.reduce_op));
  out.U8(flags);
  out.Text(signature.name);
  out.Varint(signature.process_set);
  out.Signed(signature.root_rank);
  if ((flags & kHasPrescale) != 0) out.Double(signature.prescale);
  if ((flags & kHasPostscale) != 0) out.Double(signature.postscale);
  HVL_CHECK(signature.ranks.empty() || signature.kind == OpKind::kProcessSet,
            "only a process set has ranks");
  if (signature.kind == OpKind::kProcessSet) WriteRanks(out, signature.ranks);
  out.Varint(signature.tensors.size());
  for (const TensorSignature& tensor : signature.tensors) {
    out.U8(static_cast<std::uint8_t>(tensor.dtype));
    out.Varint(tensor.layout);
    WriteDims(out, tensor.shape);
  }
}

Signature ReadSignature(Reader& in) {
  const std::size_t before = in.remaining();
  Signature signature;
  const std::uint8_t kind = in.U8();
  if (kind > static_cast<std::uint8_t>(OpKind::kProcessSet)) {
    in.Fail(Format("operation {}", kind));
  }
  signature.kind = static_cast<OpKind>(kind);
  const std::uint8_t op = in.U8();
  if (op > static_cast<std::uint8_t>(ReduceOp::kProduct)) in.Fail(Format("reduction {}", op));
  signature.reduce_op = static_cast<ReduceOp>(op);
  const std::uint8_t flags = in.U8();
  if (flags > (kHasPrescale | kHasPostscale)) in.Fail(Format("signature flags {}", flags));
  signature.name = in.Utf8(kMaxNameBytes, "a name");
  if (signature.name.empty()) in.Fail("an empty name");
  signature.process_set = static_cast<std::uint32_t>(in.Bounded(kMaxUint32, "a process set"));
  const std::int64_t root = in.Signed();
  signature.root_rank = static_cast<std::int32_t>(root);
  if (signature.root_rank != root) in.Fail(Format("root rank {}", root));
  if ((flags & kHasPrescale) != 0) signature.prescale = ReadScale(in);
  if ((flags & kHasPostscale) != 0) signature.postscale = ReadScale(in);
  if (signature.kind == OpKind::kProcessSet) signature.ranks = ReadRanks(in);
  if (const std::string_view fault = ProcessSetFault(signature); !fault.empty()) in.Fail(fault);
  const std::size_t count = in.Count(kTensorBytes, "tensors");
  if ((count > 0) != HasTensors(signature.kind)) {
    in.Fail(Format("{} tensors for operation {}", count, kind));
  }
  for (std::size_t i = 0; i < count && in.ok(); ++i) signature.tensors.push_back(ReadTensor(in));
  if (before - in.remaining() > kMaxSignatureBytes && in.ok()) in.Fail("a signature too long");
  return signature;
}

Status CheckSignature(const Signature& signature) {
  const auto bad = [&signature](std::string_view what) {
    constexpr std::size_t kShownBytes = 64;
    return Status(StatusCode::kInvalidArgument,
                  Format("operation '{}': {}",
                         CleanText(std::string_view(signature.name).substr(0, kShownBytes)), what));
  };
  if (signature.name.empty()) return bad("a name is needed");
  if (signature.name.size() > kMaxNameBytes) {
    return bad(
        Format("the name has {} bytes; the most is {}", signature.name.size(), kMaxNameBytes));
  }
  if (!IsUtf8(signature.name)) return bad("the name must be valid UTF-8");
  if (signature.tensors.empty() == HasTensors(signature.kind)) {
    return bad(signature.tensors.empty() ? "at least one tensor is needed"
                                         : Format("{} has no tensors", OpKindName(signature.kind)));
  }
  if (const std::string_view fault = ProcessSetFault(signature); !fault.empty()) return bad(fault);
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return bad("scale factors must be finite numbers");
  }
  constexpr std::size_t kFixedBytes = 48;  // all but the name and the tensors, at most
  std::size_t bytes = kFixedBytes + signature.name.size();
  std::int32_t previous = -1;
  for (const std::int32_t rank : signature.ranks) {
    if (rank <= previous) return bad("the ranks of a process set must ascend, without repetition");
    bytes += VarintBytes(static_cast<std::uint64_t>(rank));
    previous = rank;
  }
  for (const TensorSignature& tensor : signature.tensors) {
    if (tensor.shape.size() > kMaxDimensions) {
      return bad(Format("a tensor has {} dimensions; the most is {}", tensor.shape.size(),
                        kMaxDimensions));
    }
    bytes += kTensorBytes + VarintBytes(tensor.layout);
    for (const std::int64_t dim : tensor.shape) {
      if (dim < 0) return bad(Format("dimension {} is negative", dim));
      bytes += VarintBytes(static_cast<std::uint64_t>(dim));
    }
  }
  if (bytes <= kMaxSignatureBytes) return Status::Ok();
  return bad(
      Format("{} tensors in one operation need {} bytes to describe, the most is {}; "
             "use several operations",
             signature.tensors.size(), bytes, kMaxSignatureBytes));
}

}  // namespace hvl::wire
