#include "csrc/collective/tcp_group.h"

namespace hvl::collective {
namespace {

// For all streams together, so that many ranks do not need much memory.
constexpr std::size_t kMaxWindowBytes = 16 << 20;
constexpr std::size_t kWindowAlignment = 64;  // a cache line, and a multiple of every element size

}  // namespace

TransferHeader TcpGroup::NextHeader(OpKind kind, std::uint64_t bytes, int root) {
  TransferHeader header;
  header.sequence = ++sequence_;
  header.kind = kind;
  header.root = static_cast<std::uint32_t>(world_ranks_[static_cast<std::size_t>(root)]);
  header.bytes = bytes;
  header.part = tag_;
  return header;
}

std::span<std::byte> TcpGroup::Scratch(std::size_t bytes) {
  std::vector<std::byte>& memory = means_->scratch;
  if (memory.size() < bytes) memory.resize(bytes);
  return std::span(memory).first(bytes);
}

std::vector<RingWindow> TcpGroup::Windows(std::size_t count, std::size_t bytes_each) {
  const std::size_t rounded =
      (bytes_each + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
  const std::span<std::byte> memory = Scratch(count * rounded);
  std::vector<RingWindow> windows;
  for (std::size_t i = 0; i < count; ++i)
    windows.emplace_back(memory.subspan(i * rounded, rounded));
  return windows;
}

std::size_t TcpGroup::ChunkBytes(std::size_t windows) const {
  const std::size_t share = kMaxWindowBytes / (kWindowChunks * std::max(windows, std::size_t{1}));
  const std::size_t chunk = std::min(options_.chunk_bytes, share);
  return std::max(chunk / kWindowAlignment, std::size_t{1}) * kWindowAlignment;
}

}  // namespace hvl::collective
