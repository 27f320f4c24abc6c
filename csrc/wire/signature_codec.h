// Signatures and lists of dimensions to bytes and back; the layout is told in codec.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "csrc/wire/messages.h"
#include "csrc/wire/reader.h"
#include "csrc/wire/writer.h"

namespace hvl::wire {

// Limits of numbers that both files read.
inline constexpr std::uint64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint64_t kMaxRank = std::numeric_limits<std::int32_t>::max();

void WriteDims(Writer& out, std::span<const std::int64_t> dims);
std::vector<std::int64_t> ReadDims(Reader& in, std::size_t max_count);

void WriteSignature(Writer& out, const Signature& signature);
Signature ReadSignature(Reader& in);

}  // namespace hvl::wire
