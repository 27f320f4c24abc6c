// How ranks meet by a name. The name is an abstract Unix socket, which one process can have at a
// time, and which is free again when that process has gone, so it chooses the server:
//
//   take the name, and serve; or it is taken: connect to who has it
//   join there, the server as well
//   the connection broke before an answer came: the server has gone, begin again
//
// A server stops when its own rank has its answer; it delivers the others' first. A rank that comes
// for the next rendezvous meanwhile is sent away, and begins again too.
//
// Whom to trust: the kernel tells both ends of such a socket which user the other one is
// (SO_PEERCRED), and other users are refused. The hand-shake with the server proves the name only:
// its secret is derived from it. Behind it each rank puts 32 random bytes into what it publishes,
// and the secret of the ranks' links is made from those of all.
#include "csrc/net/meeting.h"

#include <unistd.h>
#include <algorithm>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/handshake.h"
#include "csrc/net/hmac.h"
#include "csrc/net/interfaces.h"
#include "csrc/net/round.h"

namespace hvl::net {
namespace {

constexpr std::size_t kShareBytes = 32;
// Between the end of one server and the beginning of the next.
constexpr Duration kPause = std::chrono::milliseconds(5);

std::string RandomShare() {
  std::string share(kShareBytes, '\0');
  FillRandom(std::as_writable_bytes(std::span(share)));
  return share;
}

/// Takes the ranks' parts of the links' secret off what they published.
Result<Rendezvous> TakeShares(Rendezvous met, const Secret& base) {
  std::string shares;
  for (std::string& published : met.blobs) {
    if (published.size() < kShareBytes) {
      return Status(StatusCode::kMismatch,
                    "a rank published something else than its part of the secret: all ranks must "
                    "run the same version of horovodlite");
    }
    shares.append(published, 0, kShareBytes);
    Wipe(std::as_writable_bytes(std::span(published).first(kShareBytes)));
    published.erase(0, kShareBytes);
  }
  met.secret.emplace().key = HmacSha256(KeyFor("hvl links", "", base), AsBytes(shares));
  Wipe(std::as_writable_bytes(std::span(shares)));
  return met;
}

/// What a rank brings to a meeting, and until when it waits there.
struct Entry {
  std::string published;
  TimePoint deadline;
};

Result<Entry> Enter(int rank, int size, const std::string& blob, Duration timeout) {
  HVL_RETURN_IF_ERROR(CheckJoin(rank, size, kShareBytes + blob.size()));
  const Duration left = std::min<Duration>(timeout, std::chrono::hours(24 * 365));
  return Entry{.published = RandomShare() + blob, .deadline = SteadyClock().Now() + left};
}

Result<Rendezvous> Interruption() {
  return Status(StatusCode::kAborted, "joining was interrupted while ranks were missing");
}

class Meeting final : public Store {
 public:
  Meeting(std::string id, Interrupted interrupted, Logger logger)
      : id_(std::move(id)),
        name_(Format("hvl-meet-{}", id_)),
        key_(KeyFor("hvl store", id_)),
        interrupted_(std::move(interrupted)),
        logger_(std::move(logger)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    HVL_ASSIGN_OR_RETURN(const Entry own, Enter(rank, size, blob, timeout));
    for (;;) {
      const Duration left = own.deadline - SteadyClock().Now();
      Result<Rendezvous> met = JoinOnce(rank, size, own.published, left);
      if (met.ok()) return TakeShares(*std::move(met), Secret());
      if (met.status().code() != StatusCode::kUnavailable) return met;
      if (SteadyClock().Now() >= own.deadline) return NobodyServes(rank, size);
      if (interrupted_ && interrupted_()) return Interruption();
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  Result<Rendezvous> JoinOnce(int rank, int size, const std::string& published, Duration left) {
    HVL_ASSIGN_OR_RETURN(const std::unique_ptr<StoreServer> server,
                         StoreServer::StartAt(name_, key_, id_, logger_));
    HVL_ASSIGN_OR_RETURN(const std::unique_ptr<Store> client,
                         OpenStore(Format("unix:@{}", name_), key_, id_, interrupted_));
    HVL_LOG(logger_, kDebug, "net", "rank {} {} at unix:@{}", rank,
            server == nullptr ? "joins" : "serves", name_);
    Result<Rendezvous> met = client->Join(rank, size, published, left);
    if (server != nullptr) server->Finish();
    return met;
  }

  // Its listener may live on in a process that was forked while it served.
  Status NobodyServes(int rank, int size) const {
    return {StatusCode::kTimeout,
            Format("rank {} of {} could not join in time: the place where the ranks meet, "
                   "unix:@{}, is held by a process that serves nobody (a child that was forked "
                   "during init()?). End that process, or set HVL_JOB_ID to a new name on all "
                   "ranks",
                   rank, size, name_)};
  }

  const std::string id_;
  const std::string name_;
  const Secret key_;
  const Interrupted interrupted_;
  const Logger logger_;
};

bool IsLoopback(const SocketAddress& address) {
  const std::string host = NumericHost(address);
  return host.starts_with("127.") || host == "::1";
}

class RankZeroMeeting final : public Store {
 public:
  RankZeroMeeting(HeadPlace place, Interrupted interrupted, Logger logger)
      : place_(std::move(place)),
        interrupted_(std::move(interrupted)),
        logger_(std::move(logger)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    HVL_ASSIGN_OR_RETURN(const Entry own, Enter(rank, size, blob, timeout));
    std::unique_ptr<StoreServer> server;
    if (rank == 0) {
      HVL_ASSIGN_OR_RETURN(server, Serve());
    }
    const std::string address = server == nullptr ? TcpText(place_.address) : server->address();
    HVL_ASSIGN_OR_RETURN(const std::unique_ptr<Store> client,
                         OpenStore(address, place_.secret, place_.job_id, interrupted_,
                                   WhenAbsent::kWait, place_.silence_limit));
    // Rank 0 may still be serving the last of an earlier rendezvous, and sends others away.
    for (;;) {
      Result<Rendezvous> met =
          client->Join(rank, size, own.published, own.deadline - SteadyClock().Now());
      if (met.ok() && server != nullptr) server->Finish();
      if (met.ok()) return TakeShares(*std::move(met), place_.secret);
      const bool sent_away = met.status().code() == StatusCode::kUnavailable &&
                             met.status().culprit_rank() == Status::kNoRank;
      const bool again = sent_away && rank != 0;
      if (!again || SteadyClock().Now() >= own.deadline) return met;
      if (interrupted_ && interrupted_()) return Interruption();
      std::this_thread::sleep_for(kPause);
    }
  }

  Result<std::string> LocalHost(TimePoint deadline) override {
    HVL_ASSIGN_OR_RETURN(const std::unique_ptr<Store> client,
                         OpenStore(TcpText(place_.address), place_.secret, place_.job_id,
                                   interrupted_, WhenAbsent::kWait));
    HVL_ASSIGN_OR_RETURN(std::string host, client->LocalHost(deadline));
    if (!NamesLoopback()) return host;
    // On rank 0's host its name may lead to the loopback address, which is no use elsewhere.
    HVL_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, BindHosts());
    return hosts.front();
  }

 private:
  /// Debian's installer gives a machine's own name an address that no other machine can use.
  bool NamesLoopback() const {
    const auto found = LookUp(place_.address);
    return found.ok() && place_.address.host != "localhost" &&
           !NumericAddress(TcpText(place_.address)).ok() && std::ranges::all_of(*found, IsLoopback);
  }

  bool IsOwn() const {
    const auto found = LookUp(place_.address);
    return found.ok() && std::ranges::any_of(*found, IsOwnAddress);
  }

  /// What to listen on: what the others ask for, or HVL_NETWORK where that is no address of this
  /// host (behind a translation of addresses, say).
  Result<std::vector<std::string>> BindHosts() const {
    const std::vector<std::string> named = {place_.address.host};
    const bool names_loopback = NamesLoopback();
    if (!names_loopback && (place_.networks.empty() || IsOwn())) return named;
    HVL_ASSIGN_OR_RETURN(std::vector<std::string> hosts, ChooseAddresses(place_.networks));
    if (names_loopback) hosts.push_back(place_.address.host);  // for the ranks of this host
    return hosts;
  }

  Result<std::unique_ptr<StoreServer>> Serve() const {
    HVL_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, BindHosts());
    auto server =
        StoreServer::StartTcp(hosts, place_.address.port, place_.secret, place_.job_id, logger_);
    if (!server.ok()) {
      return Status(server.status().code(),
                    Format("rank 0 cannot serve the others: {}. MASTER_ADDR must name the host of "
                           "rank 0, or HVL_NETWORK its addresses",
                           server.status().message()));
    }
    if (*server != nullptr) return server;
    return Status(StatusCode::kInvalidArgument,
                  Format("rank 0 cannot serve the others at {}: another process has the port; "
                         "choose one with HVL_STORE_PORT on all ranks",
                         TcpText(place_.address)));
  }

  const HeadPlace place_;
  const Interrupted interrupted_;
  const Logger logger_;
};

}  // namespace

Secret KeyFor(std::string_view purpose, std::string_view text, const Secret& base) {
  Secret key;
  key.key = HmacSha256(base, AsBytes(Format("{}\n{}", purpose, text)));
  return key;
}

std::unique_ptr<Store> MeetAtRankZero(HeadPlace place, Interrupted interrupted, Logger logger) {
  return std::make_unique<RankZeroMeeting>(std::move(place), std::move(interrupted),
                                           std::move(logger));
}

std::string MeetingId(const std::string& job) {
  const Secret digest = KeyFor("hvl job", Format("{} {}", ::geteuid(), job));
  std::string id;
  for (const std::byte byte : std::span(digest.key).first<16>()) {
    id += Format("{:02x}", static_cast<unsigned>(byte));
  }
  return id;
}

std::unique_ptr<Store> MeetByName(std::string meeting_id, Interrupted interrupted, Logger logger) {
  return std::make_unique<Meeting>(std::move(meeting_id), std::move(interrupted),
                                   std::move(logger));
}

}  // namespace hvl::net
