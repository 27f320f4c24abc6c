// What a rank asks the store server and what it answers, after the hand-shake: one request and one
// answer per connection, each a header of fixed size and a body whose size the header gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/net/store.h"
#include "horovodlite/status.h"

namespace hvl::net {

inline constexpr std::size_t kJoinHeaderBytes = 24;
inline constexpr std::size_t kAnswerHeaderBytes = 24;

struct JoinHeader {
  int rank = 0;
  int size = 0;
  Duration timeout{};
  std::size_t blob_bytes = 0;
  /// After which silence of the rank's host the others are not to wait for it; zero: for ever.
  Duration silence_limit{};
};

/// `header.blob_bytes` counts for nothing.
std::string EncodeJoin(const JoinHeader& header, std::string_view blob);
/// Checks everything a hostile client could put there (see CheckJoin).
Result<JoinHeader> DecodeJoinHeader(std::span<const std::byte, kJoinHeaderBytes> header);

struct AnswerHeader {
  StatusCode code = StatusCode::kOk;
  int culprit_rank = Status::kNoRank;
  std::uint64_t generation = 0;
  std::uint32_t rank_count = 0;
  std::size_t body_bytes = 0;
};

std::string EncodeAnswer(const Result<Rendezvous>& answer);
Result<AnswerHeader> DecodeAnswerHeader(std::span<const std::byte, kAnswerHeaderBytes> header);
/// The rendezvous, or the status that the store reports, or Internal when the bytes make no sense.
Result<Rendezvous> DecodeAnswer(const AnswerHeader& header, std::string_view body);

}  // namespace hvl::net
