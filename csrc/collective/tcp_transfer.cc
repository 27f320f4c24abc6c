#include "csrc/collective/tcp_transfer.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"

namespace hvl::collective {
namespace {

// Pieces per system call: enough for a batch of small tensors, little enough for the stack.
constexpr std::size_t kMaxParts = 128;
// And bytes: the streams take turns, so that what is on its way stays small enough for the caches.
constexpr std::size_t kMaxMoveBytes = 256 << 10;
constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << 48) - 1;

}  // namespace

void ScatterList::Add(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  // One type for both directions; see the header.
  auto* const start = static_cast<std::byte*>(const_cast<void*>(data));  // NOLINT
  pieces_.push_back({start, bytes_, bytes});
  bytes_ += bytes;
}

void ScatterList::Append(const ScatterList& other) {
  for (const Piece& piece : other.pieces_) Add(piece.data, piece.bytes);
}

ScatterList ScatterList::Slice(std::size_t begin, std::size_t end) const {
  HVL_CHECK(begin <= end && end <= bytes_, "a slice outside of the list");
  ScatterList slice;
  auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::begin);
  if (piece != pieces_.begin()) --piece;
  for (; piece != pieces_.end() && piece->begin < end; ++piece) {
    const std::size_t from = std::max(begin, piece->begin);
    const std::size_t to = std::min(end, piece->begin + piece->bytes);
    if (from < to) slice.Add(piece->data + (from - piece->begin), to - from);
  }
  return slice;
}

std::span<std::byte> ScatterList::At(std::size_t offset) {
  HVL_CHECK(offset < bytes_, Format("offset {} of {}", offset, bytes_));
  if (offset < pieces_[last_].begin) last_ = 0;
  while (offset >= pieces_[last_].begin + pieces_[last_].bytes) ++last_;
  const Piece& piece = pieces_[last_];
  return std::span(piece.data, piece.bytes).subspan(offset - piece.begin);
}

std::string TransferHeader::ToString() const {
  const std::string from = kind == OpKind::kBroadcast ? Format(" from rank {}", root) : "";
  const std::string where = part == 0 ? "" : Format(" of the process set with tag {:#06x}", part);
  return Format("{}{} of {} bytes (operation {}{}, phase {})", OpKindName(kind), from, bytes,
                sequence, where, phase);
}

// Two little-endian words: sequence (32 bits), root (20), phase (8) and kind (4); bytes (48) and
// part (16).
std::array<std::byte, TransferHeader::kBytes> TransferHeader::Encode() const {
  const std::uint64_t first = std::uint64_t{sequence} | std::uint64_t{root} << 32 |
                              std::uint64_t{phase} << 52 | static_cast<std::uint64_t>(kind) << 60;
  HVL_CHECK(bytes <= kMostBytes, "an operation of more bytes than machines have");
  const std::uint64_t second = bytes | std::uint64_t{part} << 48;
  std::array<std::byte, kBytes> out{};
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>((first >> (8 * i)) & 0xFF);
    out[8 + i] = static_cast<std::byte>((second >> (8 * i)) & 0xFF);
  }
  return out;
}

TransferHeader TransferHeader::Decode(std::span<const std::byte, kBytes> in) {
  std::uint64_t words[2] = {0, 0};
  for (std::size_t i = 0; i < kBytes; ++i)
    words[i / 8] |= static_cast<std::uint64_t>(in[i]) << (8 * (i % 8));
  TransferHeader header;
  header.sequence = static_cast<std::uint32_t>(words[0]);
  header.root = static_cast<std::uint32_t>(words[0] >> 32) & 0xFFFFF;
  header.phase = static_cast<std::uint8_t>(words[0] >> 52);
  header.kind = static_cast<OpKind>(words[0] >> 60);
  header.bytes = words[1] & kMostBytes;
  header.part = static_cast<std::uint16_t>(words[1] >> 48);
  return header;
}

Status TcpLinks::Stop(const Status& cause) {
  HVL_CHECK(!cause.ok(), "an abort needs a cause");
  const MutexLock lock(mutex_);
  if (!cause_.ok()) return cause_;
  cause_ = cause;
  stopped_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  const ssize_t written = ::write(abort_event_.get(), &one, sizeof one);
  HVL_CHECK(written == sizeof one, "cannot ring the abort event");
  return cause_;
}

Status TcpLinks::cause() const {
  const MutexLock lock(mutex_);
  return cause_;
}

std::size_t Transfer::Send(int peer, StreamMemory& memory, std::size_t bytes, std::size_t limit) {
  return Add(true, peer, memory, bytes, limit);
}

std::size_t Transfer::Receive(int peer, StreamMemory& memory, std::size_t bytes,
                              std::size_t limit) {
  return Add(false, peer, memory, bytes, limit);
}

std::size_t Transfer::Add(bool sends, int peer, StreamMemory& memory, std::size_t bytes,
                          std::size_t limit) {
  Stream stream;
  stream.peer = world_ranks_[static_cast<std::size_t>(peer)];
  stream.sends = sends;
  stream.memory = &memory;
  stream.bytes = bytes;
  stream.limit = std::min(limit, bytes);
  if (sends) stream.header = header_.Encode();
  streams_.push_back(stream);
  return streams_.size() - 1;
}

Status Transfer::ConnectPeers() {
  std::vector<int> missing;
  for (const Stream& stream : streams_)
    if (links_.socket(stream.peer) < 0) missing.push_back(stream.peer);
  return missing.empty() ? Status::Ok() : links_.Connect(missing);
}

Status Transfer::Run(const std::function<void()>& on_progress) {
  if (links_.stopped()) return links_.cause();
  HVL_RETURN_IF_ERROR(ConnectPeers());
  TimePoint idle_since{};
  for (;;) {
    if (links_.stopped()) return links_.cause();
    const Result<bool> moved = MoveAll();
    if (!moved.ok()) return links_.Stop(moved.status());
    if (*moved) {
      on_progress();
      idle_since = {};
      continue;
    }
    if (std::ranges::all_of(streams_, &Stream::complete)) return Status::Ok();
    // A peer on another core answers sooner than this thread could fall asleep.
    const TimePoint now = SteadyClock().Now();
    if (idle_since == TimePoint{}) idle_since = now;
    if (now - idle_since < links_.spin()) {
      for (Stream& stream : streams_) stream.blocked = false;
      continue;
    }
    Wait();
  }
}

// One round over all streams that can move; true when at least one did. What others wait for goes
// first; also a header, which tells them what this rank does, before theirs may turn out wrong.
Result<bool> Transfer::MoveAll() {
  bool any = false;
  for (const bool sends : {true, false}) {
    for (Stream& stream : streams_) {
      if (stream.sends != sends || stream.blocked || stream.complete() || !stream.may_move())
        continue;
      HVL_ASSIGN_OR_RETURN(const bool moved, Move(stream));
      any = any || moved;
    }
  }
  return any;
}

Result<bool> Transfer::Move(Stream& stream) {
  std::array<iovec, kMaxParts> parts;
  std::size_t count = 0;
  if (stream.moved < TransferHeader::kBytes)
    parts[count++] = {stream.header.data() + stream.moved, TransferHeader::kBytes - stream.moved};
  const std::size_t begin = stream.moved - std::min(stream.moved, TransferHeader::kBytes);
  const std::size_t end = std::min(stream.limit, begin + kMaxMoveBytes);
  std::size_t asked = count == 0 ? 0 : parts[0].iov_len;
  for (std::size_t at = begin; at < end && count < kMaxParts;) {
    const std::span<std::byte> memory = stream.memory->At(at);
    const std::size_t bytes = std::min(memory.size(), end - at);
    parts[count++] = {memory.data(), bytes};
    at += bytes;
    asked += bytes;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const int socket = links_.socket(stream.peer);
  const ssize_t result = stream.sends ? ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                                      : ::recvmsg(socket, &message, MSG_DONTWAIT);
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
    stream.blocked = errno == EAGAIN;
    return false;
  }
  if (result < 0) return Lost(stream, ErrnoText(errno));
  if (result == 0) return Lost(stream, "it closed the connection");
  // The socket gave or took less than it could have: it is empty or full, no need to ask it again.
  stream.blocked = static_cast<std::size_t>(result) < asked;
  const std::size_t before = stream.moved;
  stream.moved += static_cast<std::size_t>(result);
  const std::size_t header_bytes =
      std::min(stream.moved, TransferHeader::kBytes) - std::min(before, TransferHeader::kBytes);
  if (stream.sends) {
    links_.header_bytes_sent += header_bytes;
    links_.payload_bytes_sent += static_cast<std::size_t>(result) - header_bytes;
  } else if (header_bytes > 0 && stream.moved >= TransferHeader::kBytes) {
    HVL_RETURN_IF_ERROR(CheckHeader(stream));
  }
  return true;
}

Status Transfer::CheckHeader(const Stream& stream) const {
  const TransferHeader theirs = TransferHeader::Decode(stream.header);
  if (theirs == header_) return Status::Ok();
  return {
      StatusCode::kInternal,
      Format("ranks run different operations on the data plane: rank {} is in {}, rank {} in {}",
             stream.peer, theirs.ToString(), links_.rank(), header_.ToString()),
      stream.peer};
}

Status Transfer::Lost(const Stream& stream, const std::string& how) const {
  return {StatusCode::kUnavailable,
          Format("lost rank {} during {}: {}", stream.peer, header_.ToString(), how), stream.peer};
}

// Sleeps until a blocked stream can move, or until an abort.
void Transfer::Wait() {
  polled_.assign(1, {links_.abort_event(), POLLIN, 0});
  for (const Stream& stream : streams_) {
    if (!stream.blocked || stream.complete()) continue;
    polled_.push_back(
        {links_.socket(stream.peer), stream.sends ? short{POLLOUT} : short{POLLIN}, 0});
  }
  HVL_CHECK(polled_.size() > 1, "a transfer waits for nothing");
  const int ready = ::poll(polled_.data(), polled_.size(), -1);
  HVL_CHECK(ready >= 0 || errno == EINTR, Format("poll failed: errno {}", errno));
  std::size_t next = 1;
  for (Stream& stream : streams_) {
    if (!stream.blocked || stream.complete()) continue;
    stream.blocked = ready <= 0 || polled_[next].revents == 0;
    ++next;
  }
}

}  // namespace hvl::collective
