#include "launcher/rank_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kPipeBytes = 65536;  // what a pipe holds
// A pipe may have been made larger, and data loaders may go on writing into it.
constexpr int kMaxReadsOfRest = 16;

}  // namespace

RankPipes::RankPipes(Poller* poller, Emit emit)
    : poller_(poller), emit_(std::move(emit)), chunk_(kPipeBytes) {}

Result<RankPipes::RankEnds> RankPipes::Add(int rank, bool shown) {
  RankEnds ends;
  for (const bool is_stderr : {false, true}) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
      return Status(
          StatusCode::kResourceExhausted,
          Format("no pipe for the output of rank {}: {}; see ulimit -n", rank, ErrnoText(errno)));
    }
    (is_stderr ? ends.err : ends.out) = net::UniqueFd(pipe[1]);
    const auto index = static_cast<std::uint32_t>(streams_.size());
    streams_.push_back({.rank = rank,
                        .is_stderr = is_stderr,
                        .shown = shown,
                        .pipe = net::UniqueFd(pipe[0]),
                        .watched = false});
    // Only our end: the rank's descriptor must block, as programs expect.
    if (::fcntl(pipe[0], F_SETFL, O_NONBLOCK) != 0 || !Watch(index)) {
      return Status(StatusCode::kResourceExhausted,
                    Format("cannot watch the output of rank {}: {}", rank, ErrnoText(errno)));
    }
  }
  return ends;
}

bool RankPipes::Watch(std::uint32_t index) {
  Stream* stream = &streams_[index];
  stream->watched =
      poller_->WatchReadable(stream->pipe.get(), {.kind = Token::Kind::kStream, .index = index});
  return stream->watched;
}

void RankPipes::Unwatch(Stream* stream) {
  if (stream->watched) poller_->Forget(stream->pipe.get());
  stream->watched = false;
}

bool RankPipes::OnReadable(std::uint32_t index) {
  Stream* stream = &streams_[index];
  if (!stream->pipe.valid()) return false;
  const ssize_t count = ::read(stream->pipe.get(), chunk_.data(), chunk_.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {
    Unwatch(stream);
    stream->pipe.Reset();
    emit_(stream->rank, stream->is_stderr, {});
  } else {
    emit_(stream->rank, stream->is_stderr, {chunk_.data(), static_cast<std::size_t>(count)});
  }
  return true;
}

void RankPipes::SetReading(bool is_stderr, bool on) {
  reading_.at(is_stderr ? 1 : 0) = on;
  Update();
}

void RankPipes::Hold(bool held) {
  held_ = held;
  Update();
}

void RankPipes::Update() {
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = &streams_[i];
    if (!stream->pipe.valid()) continue;
    const bool wanted = !held_ && (!stream->shown || reading_.at(stream->is_stderr ? 1 : 0));
    if (wanted && !stream->watched) Watch(i);
    if (!wanted) Unwatch(stream);
  }
}

bool RankPipes::paused() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return stream.pipe.valid() && !stream.watched; });
}

bool RankPipes::ReadRest() {
  bool found = false;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].watched && OnReadable(i)) found = true;
  }
  return found;
}

void RankPipes::ReadRestOf(int rank) {
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].rank != rank) continue;
    for (int reads = 0; reads < kMaxReadsOfRest; ++reads) {
      if (!streams_[i].watched || !OnReadable(i)) break;
    }
  }
}

}  // namespace hvl::launcher
