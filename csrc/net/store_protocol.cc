#include "csrc/net/store_protocol.h"

#include <algorithm>
#include <limits>

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/round.h"

namespace hvl::net {
namespace {

// Long enough for "for ever", short enough to be added to a point in time.
constexpr std::uint64_t kLongestTimeoutMs = 365ULL * 24 * 3600 * 1000;
constexpr std::uint64_t kLongestSilenceMs = 24ULL * 3600 * 1000;

std::uint64_t Millis(Duration duration) {
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(millis, 0));
}

}  // namespace

std::string EncodeJoin(const JoinHeader& header, std::string_view blob) {
  ByteWriter out;
  out.Integer(static_cast<std::uint32_t>(header.rank));
  out.Integer(static_cast<std::uint32_t>(header.size));
  out.Integer(Millis(header.timeout));
  out.Integer(static_cast<std::uint32_t>(blob.size()));
  out.Integer(static_cast<std::uint32_t>(Millis(header.silence_limit)));
  out.Raw(blob);
  return out.Take();
}

Result<JoinHeader> DecodeJoinHeader(std::span<const std::byte, kJoinHeaderBytes> header) {
  ByteReader in(header);
  JoinHeader join;
  join.rank = static_cast<int>(in.Integer<std::uint32_t>());
  join.size = static_cast<int>(in.Integer<std::uint32_t>());
  const auto millis = std::min(in.Integer<std::uint64_t>(), kLongestTimeoutMs);
  join.timeout = std::chrono::milliseconds(millis);
  join.blob_bytes = in.Integer<std::uint32_t>();
  const std::uint64_t silence_ms = in.Integer<std::uint32_t>();
  join.silence_limit = std::chrono::milliseconds(std::min(silence_ms, kLongestSilenceMs));
  HVL_RETURN_IF_ERROR(CheckJoin(join.rank, join.size, join.blob_bytes));
  return join;
}

std::string EncodeAnswer(const Result<Rendezvous>& answer) {
  ByteWriter body;
  if (answer.ok()) {
    for (const std::string& blob : answer->blobs) body.Text(blob);
  } else {
    body.Raw(answer.status().message());
  }
  const Status status = answer.status();
  ByteWriter out;
  out.Integer(static_cast<std::uint32_t>(status.code()));
  out.Integer(static_cast<std::uint32_t>(status.culprit_rank()));
  out.Integer(answer.ok() ? answer->generation : std::uint64_t{0});
  out.Integer(answer.ok() ? static_cast<std::uint32_t>(answer->blobs.size()) : std::uint32_t{0});
  out.Integer(static_cast<std::uint32_t>(body.str().size()));
  out.Raw(body.str());
  return out.Take();
}

Result<AnswerHeader> DecodeAnswerHeader(std::span<const std::byte, kAnswerHeaderBytes> bytes) {
  ByteReader in(bytes);
  AnswerHeader header;
  const auto code = in.Integer<std::uint32_t>();
  header.code = static_cast<StatusCode>(code);
  header.culprit_rank = static_cast<int>(in.Integer<std::uint32_t>());
  header.generation = in.Integer<std::uint64_t>();
  header.rank_count = in.Integer<std::uint32_t>();
  header.body_bytes = in.Integer<std::uint32_t>();
  // Each blob comes with four bytes of length.
  const std::size_t most = kMaxTableBytes + 4 * std::size_t{header.rank_count};
  const bool sane = code <= static_cast<std::uint32_t>(StatusCode::kInternal) &&
                    header.body_bytes <= most &&
                    4 * std::size_t{header.rank_count} <= header.body_bytes;
  if (sane) return header;
  return Status(StatusCode::kInternal, "the store's answer makes no sense");
}

Result<Rendezvous> DecodeAnswer(const AnswerHeader& header, std::string_view body) {
  if (header.code != StatusCode::kOk)
    return Status(header.code, std::string(body), header.culprit_rank);
  Rendezvous rendezvous;
  rendezvous.generation = header.generation;
  ByteReader in(body);
  for (std::uint32_t i = 0; i < header.rank_count && in.ok(); ++i)
    rendezvous.blobs.emplace_back(in.Text());
  if (in.ok() && in.remaining() == 0) return rendezvous;
  return Status(StatusCode::kInternal, "the store's table of ranks makes no sense");
}

}  // namespace hvl::net
