// What the head of a job and an agent (hvlrun on another host) say to each other, as bytes. Pure.
//
//   agent -> head   greeting (magic, protocol version), then frames; the first is Hello
//   head  -> agent  greeting, then frames
//
// A frame is a 32-bit length, a byte that tells its kind, and its fields, all little-endian. The
// kind is the place in the lists below. Text before the agent's greeting (what a login script
// prints) is skipped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "horovodlite/status.h"
#include "launcher/doctor.h"
#include "launcher/rank_host.h"
#include "launcher/topology.h"

namespace hvl::launcher {

inline constexpr std::uint16_t kAgentProtocol = 2;
inline constexpr std::size_t kMaxGreetingNoise = 65536;
/// A start order has the whole environment, which the kernel limits to a few MiB.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;
/// Output travels in pieces of what a pipe holds.
inline constexpr std::size_t kMaxWroteBytes = 65536;

// ---- from the head ----

/// The ranks of this host, and what they execute.
struct StartOrder {
  struct Rank {
    int rank = 0;
    std::vector<std::string> settings;  ///< "NAME=value", on top of `environment`
    Processors processors;              ///< empty = all of the agent's
    bool shown = true;

    template <typename Self>
    static auto Fields(Self& self) {
      return std::tie(self.rank, self.settings, self.processors, self.shown);
    }
    bool operator==(const Rank&) const = default;
  };
  std::string folder;  ///< working directory
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< entries; the agent adds what is its host's own
  std::array<std::uint8_t, 32> secret{};
  bool has_secret = true;  ///< or the agent derives it from the one it has
  std::string job_id;
  std::vector<Rank> ranks;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.folder, self.command, self.environment, self.secret, self.has_secret,
                    self.job_id, self.ranks);
  }
  bool operator==(const StartOrder&) const = default;
};

/// To examine the host for a job instead of starting it.
struct ExamineOrder {
  std::string folder;
  std::vector<std::string> command;  ///< may be empty
  std::vector<std::string> environment;
  int rank_count = 1;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.folder, self.command, self.environment, self.rank_count);
  }
  bool operator==(const ExamineOrder&) const = default;
};

struct SignalOrder {
  int signo = 0;
  bool leftovers = false;  ///< else the ranks

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.signo, self.leftovers);
  }
  bool operator==(const SignalOrder&) const = default;
};

struct KillOrder {
  template <typename Self>
  static auto Fields(Self& /*self*/) {
    return std::tie();
  }
  bool operator==(const KillOrder&) const = default;
};

struct ReadingOrder {
  bool is_stderr = false;
  bool on = true;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.is_stderr, self.on);
  }
  bool operator==(const ReadingOrder&) const = default;
};

/// "I am here", in both directions.
struct Beat {
  template <typename Self>
  static auto Fields(Self& /*self*/) {
    return std::tie();
  }
  bool operator==(const Beat&) const = default;
};

using HeadFrame =
    std::variant<StartOrder, ExamineOrder, SignalOrder, KillOrder, ReadingOrder, Beat>;

// ---- from an agent ----

/// Who answers.
struct Hello {
  std::string version;
  std::string host_name;
  int pid = 0;
  std::int64_t nanoseconds_since_1970 = 0;
  std::vector<std::string> addresses;  ///< of its interfaces, without the loopback's
  std::string ssh_connection;          ///< SSH_CONNECTION, or ""
  int free_port = 0;                   ///< reserved for what rank 0 may listen on
  std::vector<Core> cores;
  std::int64_t quota_thousandths = -1;  ///< of processor time, in processors; -1 = none

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.version, self.host_name, self.pid, self.nanoseconds_since_1970,
                    self.addresses, self.ssh_connection, self.free_port, self.cores,
                    self.quota_thousandths);
  }
  bool operator==(const Hello&) const = default;
};

/// The answer to StartOrder.
struct Started {
  std::vector<int> pids;  ///< in the order's order; empty when the start was refused
  int exit_code = 0;      ///< of a refusal
  std::string message;    ///< of a refusal; else why there is no control group, or ""

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.pids, self.exit_code, self.message);
  }
  bool operator==(const Started&) const = default;
};

/// The answer to ExamineOrder.
struct Examined {
  std::vector<Finding> findings;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.findings);
  }
  bool operator==(const Examined&) const = default;
};

/// The view lives as long as the bytes it was read from.
struct Wrote {
  int rank = 0;
  bool is_stderr = false;
  std::string_view bytes;  ///< empty = the end of the stream

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.rank, self.is_stderr, self.bytes);
  }
  bool operator==(const Wrote&) const = default;
};

struct Ended {
  RankExit exit;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.exit.rank, self.exit.pid, self.exit.status.code, self.exit.status.signal,
                    self.exit.status.core_dumped, self.exit.peak_memory_kib, self.exit.memory_hint,
                    self.exit.report);
  }
  bool operator==(const Ended&) const = default;
};

struct LeftoverGone {
  template <typename Self>
  static auto Fields(Self& /*self*/) {
    return std::tie();
  }
  bool operator==(const LeftoverGone&) const = default;
};

struct LeftoverFound {
  OtherProcess process;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.process);
  }
  bool operator==(const LeftoverFound&) const = default;
};

/// No process of the job exists on this host any more; output may follow.
struct NobodyLeft {
  template <typename Self>
  static auto Fields(Self& /*self*/) {
    return std::tie();
  }
  bool operator==(const NobodyLeft&) const = default;
};

/// The last frame.
struct Finished {
  std::vector<OtherProcess> unkillable;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.unkillable);
  }
  bool operator==(const Finished&) const = default;
};

/// Somebody has told the agent to stop, or asked it to pass a signal on.
struct Signalled {
  int signo = 0;

  template <typename Self>
  static auto Fields(Self& self) {
    return std::tie(self.signo);
  }
  bool operator==(const Signalled&) const = default;
};

using AgentFrame = std::variant<Hello, Started, Examined, Wrote, Ended, LeftoverGone, LeftoverFound,
                                NobodyLeft, Finished, Signalled, Beat>;

// ---- bytes ----

std::string Greeting();
void Encode(const HeadFrame& frame, std::string* out);
void Encode(const AgentFrame& frame, std::string* out);

/// Cuts what arrives into frames. Of a stream that breaks the rules nothing more is read.
class FrameReader {
 public:
  /// Appends what has arrived. What was returned before ends its life here.
  void Feed(std::string_view bytes);

  /// False: the greeting is not all there yet. Mismatch: somebody else answers, or another
  /// protocol version; the message quotes what was there, and does not name the host.
  Result<bool> Greeted();
  /// What stood before the greeting.
  const std::string& noise() const { return noise_; }

  /// Nothing: no whole frame is there yet. Mismatch: these are no frames of this protocol.
  Result<std::optional<HeadFrame>> NextOfHead();
  Result<std::optional<AgentFrame>> NextOfAgent();

 private:
  template <typename Frame>
  Result<std::optional<Frame>> Next();

  std::string buffer_;
  std::size_t consumed_ = 0;
  std::string noise_;
  bool greeted_ = false;
};

}  // namespace hvl::launcher
