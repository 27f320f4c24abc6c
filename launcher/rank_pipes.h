// The pipes between ranks of this machine and their launcher: what the ranks write comes out here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "csrc/net/fd.h"
#include "horovodlite/status.h"
#include "launcher/poller.h"

namespace hvl::launcher {

class RankPipes {
 public:
  /// What a rank wrote; empty = the end of the stream.
  using Emit = std::function<void(int rank, bool is_stderr, std::string_view bytes)>;

  RankPipes(Poller* poller, Emit emit);

  struct RankEnds {
    net::UniqueFd out;
    net::UniqueFd err;
  };
  /// Pipes for a rank: their write ends, to become its stdout and stderr. Those of ranks that are
  /// not `shown` are read always. Tokens are of kind kStream.
  Result<RankEnds> Add(int rank, bool shown);

  /// False when there was nothing to read after all.
  bool OnReadable(std::uint32_t stream);
  /// Whether to read from the shown ranks.
  void SetReading(bool is_stderr, bool on);
  /// While held, nothing is read from anybody.
  void Hold(bool held);
  /// Some pipe is left unread.
  bool paused() const;
  /// Reads what the pipes hold now, those left unread excepted; false when there was nothing.
  bool ReadRest();
  /// The same for what one rank wrote before it ended.
  void ReadRestOf(int rank);

 private:
  struct Stream {
    int rank = 0;
    bool is_stderr = false;
    bool shown = true;
    net::UniqueFd pipe;  // open until its last writer is gone
    bool watched = false;
  };

  bool Watch(std::uint32_t index);
  void Unwatch(Stream* stream);
  void Update();

  Poller* const poller_;
  const Emit emit_;
  std::vector<Stream> streams_;
  std::array<bool, 2> reading_ = {true, true};  // stdout, stderr
  bool held_ = false;
  std::vector<char> chunk_;
};

}  // namespace hvl::launcher
