#include <unistd.h>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/connector.h"
#include "csrc/net/hosts.h"
#include "csrc/net/mesh.h"
#include "csrc/net/process.h"
#include "csrc/net/rank_card.h"
#include "csrc/net/round.h"
#include "csrc/net/socket.h"
#include "csrc/net/socket_mesh.h"

namespace hvl::net {
namespace {

Result<std::vector<RankCard>> Meet(Store& store, const RankCard& own_card, MeshOptions* options,
                                   std::uint64_t* generation) {
  HVL_ASSIGN_OR_RETURN(
      const Rendezvous meeting,
      store.Join(options->rank, options->size, EncodeCard(own_card), options->timeout));
  *generation = meeting.generation;
  if (meeting.secret) options->secret = *meeting.secret;
  std::vector<RankCard> cards;
  for (const std::string& bytes : meeting.blobs) {
    HVL_ASSIGN_OR_RETURN(RankCard card, DecodeCard(bytes, static_cast<int>(cards.size())));
    cards.push_back(std::move(card));
  }
  return cards;
}

// Watches the processes of peers that we can name. Ranks that are threads of this process end with
// it.
std::vector<PeerLink> WatchPeers(const std::vector<RankCard>& cards, const RankCard& own_card) {
  std::vector<PeerLink> links(cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const RankCard& card = cards[i];
    const bool same_scope = !card.pid_scope.empty() && card.pid_scope == own_card.pid_scope;
    if (!same_scope) continue;
    links[i].pid = static_cast<int>(card.pid);
    if (card.pid != own_card.pid) links[i].process_fd = WatchProcess(links[i].pid);
  }
  return links;
}

// The number in a card may have passed to another process since; the kernel knows who connected.
Status CheckProcess(PeerLink& link, int rank) {
  const pid_t connected = PeerPid(link.socket.get());
  if (connected == 0) return Status::Ok();  // in a namespace that we do not see into
  if (link.pid == 0) {
    link.pid = connected;
    if (connected != ::getpid()) link.process_fd = WatchProcess(connected);
  }
  if (link.pid == connected) return Status::Ok();
  return {StatusCode::kUnavailable,
          Format("rank {} joined as process {}, but process {} holds its link", rank, link.pid,
                 connected),
          rank};
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Join(Store& store, MeshOptions options, Logger logger) {
  const TimePoint start = SteadyClock().Now();
  HVL_RETURN_IF_ERROR(CheckJobId(options.job_id));
  HVL_RETURN_IF_ERROR(CheckJoin(options.rank, options.size, options.blob.size()));
  const Transport transport = options.tcp_only ? Transport::kTcp : Transport::kUnix;
  Listener listener;
  if (options.size > 1) {
    HVL_ASSIGN_OR_RETURN(listener, Listen(transport));
  }
  const RankCard own_card{.address = listener.address,
                          .pid = static_cast<std::uint32_t>(::getpid()),
                          .pid_scope = PidScope(),
                          .host_id = options.host_id.empty() ? HostId() : options.host_id,
                          .host_name = HostName(),
                          .blob = options.blob};
  std::uint64_t generation = 0;
  HVL_ASSIGN_OR_RETURN(const std::vector<RankCard> cards,
                       Meet(store, own_card, &options, &generation));
  MeshWorld world{.generation = generation, .blobs = {}, .hosts = {}};
  HVL_ASSIGN_OR_RETURN(world.hosts, NumberHosts(cards));
  std::vector<PeerLink> links = WatchPeers(cards, own_card);
  ConnectPlan plan{.rank = options.rank,
                   .size = options.size,
                   .job_id = options.job_id,
                   .generation = generation,
                   .channel = Channel::kControl,
                   .secret = options.secret,
                   .listener = std::move(listener),
                   .addresses = {},
                   .process_fds = {},
                   .deadline = start + options.timeout};
  for (std::size_t i = 0; i < cards.size(); ++i) {
    plan.addresses.push_back(cards[i].address);
    plan.process_fds.push_back(links[i].process_fd.get());
    world.blobs.push_back(cards[i].blob);
  }
  HVL_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, ConnectAll(std::move(plan), logger));
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i].socket = std::move(sockets[i]);
    const int rank = static_cast<int>(i);
    if (rank != options.rank && transport == Transport::kUnix)
      HVL_RETURN_IF_ERROR(CheckProcess(links[i], rank));
  }
  return SocketMesh::Create(std::move(options), std::move(world), std::move(links),
                            std::move(logger));
}

}  // namespace hvl::net
