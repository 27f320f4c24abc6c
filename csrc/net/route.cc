#include "csrc/net/route.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "csrc/net/bytes.h"

namespace hvl::net {
namespace {

constexpr std::size_t kMaxCauseBytes = 4096;

/// First and last rank of each run of ranks that follow each other.
std::vector<std::pair<int, int>> RunsOf(const std::vector<int>& ranks) {
  std::vector<std::pair<int, int>> runs;
  for (const int rank : ranks) {
    if (!runs.empty() && runs.back().second + 1 == rank) {
      runs.back().second = rank;
    } else {
      runs.emplace_back(rank, rank);
    }
  }
  return runs;
}

Status NoLoss() { return {StatusCode::kInternal, "news of a loss that makes no sense"}; }

}  // namespace

void EncodeRoute(Route route, std::span<std::byte, kRouteBytes> out) {
  ByteWriter writer;
  writer.Integer(static_cast<std::uint32_t>(route.source));
  writer.Integer(static_cast<std::uint32_t>(route.destination));
  std::ranges::copy(AsBytes(writer.str()), out.begin());
}

Route DecodeRoute(std::span<const std::byte, kRouteBytes> in) {
  ByteReader reader(in);
  Route route;
  route.source = static_cast<int>(reader.Integer<std::uint32_t>());
  route.destination = static_cast<int>(reader.Integer<std::uint32_t>());
  return route;
}

std::string EncodeLoss(const LossNotice& loss) {
  const auto runs = RunsOf(loss.ranks);
  ByteWriter out;
  out.Integer(static_cast<std::uint32_t>(loss.cause.code()));
  out.Integer(static_cast<std::uint32_t>(loss.cause.culprit_rank()));
  out.Integer(static_cast<std::uint32_t>(runs.size()));
  for (const auto& [first, last] : runs) {
    out.Integer(static_cast<std::uint32_t>(first));
    out.Integer(static_cast<std::uint32_t>(last));
  }
  out.Text(std::string_view(loss.cause.message()).substr(0, kMaxCauseBytes));
  return out.Take();
}

Result<LossNotice> DecodeLoss(std::span<const std::byte> bytes, int size) {
  ByteReader in(bytes);
  const auto code = in.Integer<std::uint32_t>();
  const int culprit = static_cast<int>(in.Integer<std::uint32_t>());
  const auto run_count = in.Integer<std::uint32_t>();
  LossNotice loss;
  int next = 0;  // runs ascend and leave gaps, so each set of ranks has one encoding
  for (std::uint32_t i = 0; i < run_count; ++i) {
    const int first = static_cast<int>(in.Integer<std::uint32_t>());
    const int last = static_cast<int>(in.Integer<std::uint32_t>());
    if (!in.ok() || first < next || last < first || last >= size) return NoLoss();
    for (int rank = first; rank <= last; ++rank) loss.ranks.push_back(rank);
    next = last + 2;
  }
  const std::string_view message = in.Text();
  const bool sane = in.ok() && in.remaining() == 0 && message.size() <= kMaxCauseBytes &&
                    code > static_cast<std::uint32_t>(StatusCode::kOk) &&
                    code <= static_cast<std::uint32_t>(StatusCode::kInternal) &&
                    std::ranges::binary_search(loss.ranks, culprit);
  if (!sane) return NoLoss();
  loss.cause = Status(static_cast<StatusCode>(code), std::string(message), culprit);
  return loss;
}

}  // namespace hvl::net
