#include "launcher/frame_outlet.h"

#include <array>
#include <span>

#include "csrc/net/bytes.h"

namespace hvl::launcher {

void FrameOutlet::Send(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (kept_.error() != 0) return;
  AppendLocked(bytes);
  FlushLocked();
}

void FrameOutlet::AppendLocked(std::string_view bytes) {
  if (!sealer_) {
    *kept_.buffer() += bytes;
    return;
  }
  const std::array parts = {net::AsBytes(bytes)};
  net::ByteQueue records;
  sealer_->Seal(parts, records);
  const std::span<const std::byte> sealed = records.front();
  kept_.buffer()->append(reinterpret_cast<const char*>(sealed.data()), sealed.size());
}

Status FrameInlet::Feed(std::string_view bytes, FrameReader* reader) {
  if (!opener_) {
    reader->Feed(bytes);
    return Status::Ok();
  }
  records_.Append(net::AsBytes(bytes));
  net::ByteQueue opened;
  if (!opener_->Open(records_, opened).ok()) {
    return {StatusCode::kMismatch, "somebody else has written into its connection"};
  }
  const std::span<const std::byte> plain = opened.front();
  reader->Feed({reinterpret_cast<const char*>(plain.data()), plain.size()});
  return Status::Ok();
}

void FrameOutlet::Flush() {
  const std::lock_guard lock(mutex_);
  FlushLocked();
}

void FrameOutlet::FlushLocked() {
  while (kept_.Write(fd_.get(), kept_.bytes())) {
  }
}

std::size_t FrameOutlet::backlog_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_.bytes();
}

int FrameOutlet::error() const {
  const std::lock_guard lock(mutex_);
  return kept_.error();
}

void FrameOutlet::Beat() {
  const std::lock_guard lock(mutex_);
  if (kept_.error() != 0) return;
  if (kept_.bytes() == 0) AppendLocked(beat_);
  FlushLocked();
}

Pulse::Pulse() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}

Pulse::~Pulse() = default;

void Pulse::Add(const std::shared_ptr<FrameOutlet>& outlet) {
  const std::lock_guard lock(mutex_);
  outlets_.push_back(outlet);
}

void Pulse::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  // Nobody notifies: the stop request ends the wait.
  while (!wake_.wait_for(lock, stop, kBeatInterval, [] { return false; }) &&
         !stop.stop_requested()) {
    for (const std::weak_ptr<FrameOutlet>& weak : outlets_) {
      if (const std::shared_ptr<FrameOutlet> outlet = weak.lock()) outlet->Beat();
    }
  }
}

}  // namespace hvl::launcher
