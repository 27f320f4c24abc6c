#include "csrc/session/mpi_meeting.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/meeting.h"
#include "csrc/net/process.h"
#include "csrc/net/round.h"
#include "csrc/net/secret.h"
#include "csrc/session/mpi_plane.h"
#include "csrc/session/settings.h"

// Two exchanges. Greetings, when a session begins: which ranks share a host, and which addresses
// the hosts have, so that each chooses the one that the others can use; there is no connection yet
// whose ends would tell. Then, with Join, what any store gives: the blobs of all ranks, a
// generation, which is rank 0's clock, and a secret, made of 32 random bytes of every rank. MPI
// carries these bytes as it carries tensors: who can read them could join the control plane, unless
// the ranks have a secret of their own (HVL_SECRET_FILE).

namespace hvl::session {
namespace {

constexpr std::string_view kMagic = "hvl mpi 1";

Status OtherBytes() {
  return {StatusCode::kMismatch,
          "a process of MPI's world said something else than expected: all ranks must run the same "
          "version of horovodlite"};
}

/// In front of a blob, as it lies in memory.
struct JoinHead {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint64_t clock = 0;
  std::array<std::byte, 32> share{};  ///< of the links' secret; wiped by who has used it
};
static_assert(std::is_trivially_copyable_v<JoinHead>);
static_assert(sizeof(JoinHead) == 48, "no padding: it would be sent");

std::string EncodeJoinHead(const JoinHead& head) {
  std::string bytes(sizeof head, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

/// Takes it off the bytes, and leaves nothing of the share there.
std::optional<JoinHead> TakeJoinHead(std::string* bytes) {
  JoinHead head;
  if (bytes->size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes->data(), sizeof head);
  net::Wipe(std::as_writable_bytes(std::span(*bytes).first(sizeof head)));
  bytes->erase(0, sizeof head);
  return head;
}

class MpiStore final : public net::Store {
 public:
  MpiStore(plugin::Mpi& mpi, plugin::MpiOptions options, const net::Secret& base,
           std::string local_host, Interrupted interrupted)
      : mpi_(mpi),
        options_(std::move(options)),
        base_(base),
        local_host_(std::move(local_host)),
        interrupted_(std::move(interrupted)) {}

  Result<net::Rendezvous> Join(int rank, int size, const std::string& blob,
                               Duration timeout) override {
    HVL_RETURN_IF_ERROR(net::CheckJoin(rank, size, blob.size()));
    JoinHead own{
        .rank = rank,
        .size = size,
        .clock = static_cast<std::uint64_t>(SteadyClock().Now().time_since_epoch().count())};
    net::FillRandom(own.share);
    std::string said = EncodeJoinHead(own) + blob;
    net::Wipe(own.share);
    plugin::MpiOptions options = options_;
    options.start_timeout = std::min(timeout, options.start_timeout);
    Result<std::vector<std::string>> all = mpi_.Exchange(said, options, interrupted_);
    net::Wipe(std::as_writable_bytes(std::span(said)));
    if (!all.ok()) return all.status();
    net::Round round;
    net::Rendezvous met;
    std::vector<net::Secret> shares(static_cast<std::size_t>(size));
    for (std::string& bytes : *all) {
      std::optional<JoinHead> head = TakeJoinHead(&bytes);
      if (!head || !net::CheckJoin(head->rank, head->size, bytes.size()).ok()) return OtherBytes();
      HVL_RETURN_IF_ERROR(round.Enter(head->rank, head->size, std::move(bytes)));
      if (head->rank >= size) return OtherBytes();
      if (head->rank == 0) met.generation = head->clock;
      shares[static_cast<std::size_t>(head->rank)].key = head->share;
      net::Wipe(head->share);
    }
    if (!round.complete()) {
      return Status(StatusCode::kMismatch,
                    Format("MPI_COMM_WORLD of rank {} has {} of {} processes, and ranks {} are not "
                           "among them; start all of them with one mpirun, that of the MPI that is "
                           "loaded",
                           rank, all->size(), size, round.MissingRanks()));
    }
    met.blobs = round.TakeBlobs();
    std::string parts;
    for (const net::Secret& share : shares) {
      parts.append(reinterpret_cast<const char*>(share.key.data()), share.key.size());
    }
    met.secret = net::KeyFor("hvl links", parts, base_);
    net::Wipe(std::as_writable_bytes(std::span(parts)));
    return met;
  }

  Result<std::string> LocalHost(TimePoint /*deadline*/) override { return local_host_; }

 private:
  plugin::Mpi& mpi_;
  const plugin::MpiOptions options_;
  const net::Secret base_;  // of HVL_SECRET_FILE, or nothing
  const std::string local_host_;
  const Interrupted interrupted_;
};

}  // namespace

std::string EncodeGreeting(const MpiGreeting& greeting) {
  std::string text =
      Format("{}\n{}\n{}\n{}\n", kMagic, greeting.rank, greeting.host_id, greeting.job_id);
  for (const net::InterfaceAddress& own : greeting.addresses) {
    text += Format("{}/{}\n", own.address, own.prefix_bits);
  }
  return text;
}

Result<MpiGreeting> DecodeGreeting(std::string_view bytes) {
  std::vector<std::string_view> lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return OtherBytes();
    lines.push_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  constexpr std::size_t kFixedLines = 4;
  const auto number = [](std::string_view text, int* value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size() && *value >= 0;
  };
  MpiGreeting greeting;
  if (lines.size() < kFixedLines || lines[0] != kMagic) return OtherBytes();
  if (!number(lines[1], &greeting.rank)) return OtherBytes();
  greeting.host_id = lines[2];
  greeting.job_id = lines[3];
  for (std::size_t i = kFixedLines; i < lines.size(); ++i) {
    const std::size_t slash = lines[i].find('/');
    net::InterfaceAddress address{.address = std::string(lines[i].substr(0, slash))};
    if (slash == std::string_view::npos ||
        !number(lines[i].substr(slash + 1), &address.prefix_bits))
      return OtherBytes();
    greeting.addresses.push_back(std::move(address));
  }
  return greeting;
}

std::string AddressAmong(std::span<const MpiGreeting> all, const MpiGreeting& own) {
  std::vector<const MpiGreeting*> by_rank;
  for (const MpiGreeting& greeting : all) by_rank.push_back(&greeting);
  std::ranges::sort(by_rank, {}, &MpiGreeting::rank);
  std::vector<std::string> hosts;
  std::vector<std::vector<net::InterfaceAddress>> addresses;
  for (const MpiGreeting* greeting : by_rank) {
    if (std::ranges::find(hosts, greeting->host_id) != hosts.end()) continue;
    hosts.push_back(greeting->host_id);
    addresses.push_back(greeting->addresses);
  }
  const auto place = std::ranges::find(hosts, own.host_id);
  if (hosts.size() < 2 || place == hosts.end()) return "";
  return net::AddressesInCommon(addresses)[static_cast<std::size_t>(place - hosts.begin())];
}

Result<MpiMeeting> MeetOverMpi(const config::Config& config, const Interrupted& interrupted,
                               const Logger& logger) {
  net::Secret base;
  if (!config.secret_file.empty()) {
    HVL_ASSIGN_OR_RETURN(base, net::Secret::FromFile(config.secret_file));
  }
  HVL_ASSIGN_OR_RETURN(plugin::Mpi* const mpi, OpenMpiPlugin(config, logger));
  plugin::MpiOptions options = MpiOptions(config);
  options.yields = true;  // others of this host may still be importing
  const MpiGreeting own{.rank = config.rank,
                        .host_id = net::HostId(),
                        .job_id = net::RandomName(),
                        .addresses = net::OwnInterfaceAddresses()};
  HVL_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                       mpi->Exchange(EncodeGreeting(own), options, interrupted));
  std::vector<MpiGreeting> all;
  MpiMeeting meeting;
  for (const std::string& bytes : words) {
    HVL_ASSIGN_OR_RETURN(MpiGreeting greeting, DecodeGreeting(bytes));
    if (greeting.rank == 0) meeting.job_id = greeting.job_id;
    all.push_back(std::move(greeting));
  }
  if (meeting.job_id.empty()) {
    return Status(StatusCode::kMismatch,
                  Format("MPI_COMM_WORLD of rank {} has {} of {} processes, and rank 0 is not "
                         "among them; start all of them with one mpirun, that of the MPI that is "
                         "loaded",
                         config.rank, all.size(), config.size));
  }
  std::string address = AddressAmong(all, own);
  HVL_LOG(logger, kDebug, "session", "job={} address={}", meeting.job_id, address);
  meeting.store =
      std::make_unique<MpiStore>(*mpi, std::move(options), base, std::move(address), interrupted);
  return meeting;
}

}  // namespace hvl::session
