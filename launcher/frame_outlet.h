// The sending end of a stream of frames between the head of a job and an agent, and the pulse that
// tells the other end that this one lives.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "csrc/net/sealed_stream.h"
#include "csrc/net/secret.h"
#include "launcher/agent_frames.h"
#include "launcher/backlog.h"

namespace hvl::launcher {

inline constexpr Duration kBeatInterval = std::chrono::milliseconds(500);
/// Whoever is silent for so long is lost: a host without power, a link that is down, a machine
/// that stands still. Four beats may be late.
inline constexpr Duration kSilenceLimit = std::chrono::milliseconds(2500);

inline std::optional<net::Secret> SendingKey(const std::optional<net::LinkKeys>& keys) {
  return keys ? std::optional(keys->send) : std::nullopt;
}
inline std::optional<net::Secret> ReceivingKey(const std::optional<net::LinkKeys>& keys) {
  return keys ? std::optional(keys->receive) : std::nullopt;
}

/// Never waits for the other end: what it does not take is kept. Any thread.
class FrameOutlet {
 public:
  /// `fd` must not block. `beat` is the frame that says that this end lives. With a key the bytes
  /// go in sealed records.
  FrameOutlet(net::UniqueFd fd, std::string beat, const std::optional<net::Secret>& key)
      : fd_(std::move(fd)), beat_(std::move(beat)) {
    if (key) sealer_.emplace(*key);
  }

  int fd() const { return fd_.get(); }
  /// Bytes as they are: the greeting, frames.
  void Send(std::string_view bytes);
  /// Writes what is kept, as far as it goes.
  void Flush();
  /// One beat, unless something is on its way anyhow.
  void Beat();
  std::size_t backlog_bytes() const;
  /// The errno that ended this stream, or 0. What is sent afterwards is dropped.
  int error() const;

 private:
  void AppendLocked(std::string_view bytes);
  void FlushLocked();

  const net::UniqueFd fd_;
  const std::string beat_;
  mutable std::mutex mutex_;
  std::optional<net::Sealer> sealer_;  // guarded by mutex_
  Backlog kept_;                       // guarded by mutex_
};

/// The receiving end: opens sealed records, where there is a key, on the way to the reader.
class FrameInlet {
 public:
  explicit FrameInlet(const std::optional<net::Secret>& key) {
    if (key) opener_.emplace(*key);
  }

  /// Mismatch: a record is none of the other end's.
  Status Feed(std::string_view bytes, FrameReader* reader);

 private:
  std::optional<net::Opener> opener_;
  net::ByteQueue records_;
};

/// Beats on streams from a thread of its own: the other one may have to wait for a slow disk or
/// for a program to start, and that is no reason to end a job.
class Pulse {
 public:
  Pulse();
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// Shared with the thread, because a stream may end while it beats.
  void Add(const std::shared_ptr<FrameOutlet>& outlet);

 private:
  void Run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::weak_ptr<FrameOutlet>> outlets_;  // guarded by mutex_
  std::jthread thread_;                              // last: it uses the above
};

}  // namespace hvl::launcher
