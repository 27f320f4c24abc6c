// Collective operations whose parts have more than 2^31 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/collective/backend.h"
#include "tests/support/repeated_mapping.h"

namespace hvl::test {

/// Runs a reducescatter and an alltoall as rank `rank` of two. Returns what was wrong, or nothing.
inline std::string ExchangeHugeParts(collective::Backend& backend, int rank) {
  constexpr std::size_t kBytes = RepeatedMapping::kBytes;
  const auto mine = static_cast<std::byte>(rank + 3);
  RepeatedMapping input;
  RepeatedMapping output;
  input.Fill(mine);
  // All but the last element for rank 0. Every window of memory gets the same bytes many times.
  const std::array<std::int64_t, 2> parts = {std::int64_t{kBytes} - 1, 1};
  const collective::ScatterPiece scatter{input.data(), output.data(), parts};
  Status status = backend.Reducescatter(
      {&scatter, 1}, {.dtype = DType::kUint8, .op = ReduceOp::kSum, .rank_count = 2});
  if (!status.ok()) return status.ToString();
  if (output.data()[0] != std::byte{7}) return "wrong sum in the first byte";
  const std::byte last = rank == 0 ? std::byte{7} : std::byte{0};
  if (output.tail()[RepeatedMapping::kTail - 2] != last) return "wrong sum in the last byte";

  const std::array<std::size_t, 4> bytes = {0, kBytes, kBytes, 0};
  const collective::ExchangePiece exchange{input.data(), output.data(), bytes};
  status = backend.Alltoall({&exchange, 1});
  if (!status.ok()) return status.ToString();
  const auto theirs = static_cast<std::byte>(1 - rank + 3);
  const bool right = output.data()[0] == theirs && output.data()[kBytes - 1] == theirs;
  return right ? "" : "the alltoall brought other bytes than the peer had";
}

}  // namespace hvl::test
