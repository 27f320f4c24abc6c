#include "csrc/net/sealed_stream.h"

#include <algorithm>
#include <array>

#include "csrc/base/str.h"

namespace hvl::net {
namespace {

constexpr std::size_t kNumberBytes = 8;

template <typename T>
void StoreInteger(T value, std::span<std::byte, sizeof(T)> out) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
}

std::uint32_t LoadSize(std::span<const std::byte, kRecordHeaderBytes> in) {
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < in.size(); ++i) size |= static_cast<std::uint32_t>(in[i]) << (8 * i);
  return size;
}

}  // namespace

void Sealer::Seal(std::span<const std::span<const std::byte>> parts, ByteQueue& out) {
  record_.resize(kNumberBytes + kRecordHeaderBytes);
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const std::size_t used = record_.size() - kNumberBytes - kRecordHeaderBytes;
      if (used == kMaxRecordBytes) {
        FinishRecord(out);
        continue;
      }
      const std::size_t taken = std::min(part.size(), kMaxRecordBytes - used);
      record_.insert(record_.end(), part.begin(),
                     part.begin() + static_cast<std::ptrdiff_t>(taken));
      part = part.subspan(taken);
    }
  }
  FinishRecord(out);
}

void Sealer::FinishRecord(ByteQueue& out) {
  const std::size_t payload_bytes = record_.size() - kNumberBytes - kRecordHeaderBytes;
  StoreInteger(number_++, std::span(record_).first<kNumberBytes>());
  StoreInteger(static_cast<std::uint32_t>(payload_bytes),
               std::span(record_).subspan<kNumberBytes, kRecordHeaderBytes>());
  const Digest digest = mac_({record_});
  out.Append(std::span(record_).subspan(kNumberBytes));
  out.Append(std::span(digest).first<kRecordTagBytes>());
  record_.resize(kNumberBytes + kRecordHeaderBytes);
}

Result<std::size_t> Opener::Open(ByteQueue& records, ByteQueue& out) {
  for (std::size_t count = 0;; ++count) {
    const std::span<const std::byte> bytes = records.front();
    if (bytes.size() < kRecordHeaderBytes) return count;
    const std::size_t payload_bytes = LoadSize(bytes.first<kRecordHeaderBytes>());
    if (payload_bytes > kMaxRecordBytes) {
      return Status(StatusCode::kInternal, Format("a record of {} bytes (at most {} are allowed)",
                                                  payload_bytes, kMaxRecordBytes));
    }
    const std::size_t signed_bytes = kRecordHeaderBytes + payload_bytes;
    if (bytes.size() < signed_bytes + kRecordTagBytes) return count;
    std::array<std::byte, kNumberBytes> number{};
    StoreInteger(number_, std::span(number));
    const Digest digest = mac_({number, bytes.first(signed_bytes)});
    if (!DigestsEqual(std::span(digest).first<kRecordTagBytes>(),
                      bytes.subspan(signed_bytes, kRecordTagBytes))) {
      return Status(StatusCode::kInternal,
                    "a record that the other end has not sent, or not in this place");
    }
    ++number_;
    out.Append(bytes.subspan(kRecordHeaderBytes, payload_bytes));
    records.Consume(signed_bytes + kRecordTagBytes);
  }
}

}  // namespace hvl::net
