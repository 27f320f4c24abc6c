#include <unistd.h>
#include <algorithm>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/connector.h"
#include "csrc/net/host_tree.h"
#include "csrc/net/hosts.h"
#include "csrc/net/interfaces.h"
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

// Where ranks of other hosts can connect; empty: this rank's world is its host.
Result<std::string> NetworkHost(Store& store, const MeshOptions& options, TimePoint deadline,
                                const Logger& logger) {
  HVL_ASSIGN_OR_RETURN(std::string host, store.LocalHost(deadline));
  if (host.empty() && options.host_id.empty()) return host;
  if (host.empty()) host = "127.0.0.1";
  if (options.networks.empty()) return host;
  HVL_ASSIGN_OR_RETURN(const std::vector<std::string> allowed, ChooseAddresses(options.networks));
  // That one is known to work: the store was reached from it.
  if (std::ranges::find(allowed, host) == allowed.end()) host = allowed.front();
  if (allowed.size() > 1) {
    std::string others;
    for (const std::string& other : allowed)
      if (other != host) others += (others.empty() ? "" : ", ") + other;
    HVL_LOG(logger, kInfo, "net",
            "HVL_NETWORK='{}' names several addresses of this host: other hosts reach it at {}, "
            "and {} are not used",
            options.networks, host, others);
  }
  return host;
}

// Watches the processes of this host's peers that we can name. Ranks that are threads of this
// process end with it.
std::vector<PeerLink> WatchPeers(const std::vector<RankCard>& cards, const RankCard& own_card) {
  std::vector<PeerLink> links(cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const RankCard& card = cards[i];
    const bool same_scope = !card.pid_scope.empty() && card.pid_scope == own_card.pid_scope;
    if (!same_scope || card.host_id != own_card.host_id) continue;
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

/// What this rank listens on while the links are made.
struct Listeners {
  Listener local;   // for the ranks of this host
  Listener leader;  // for leaders of other hosts; no socket where there can be none
  Listener data;    // for TakeDataLinks
};

Result<Listeners> OpenListeners(Store& store, const MeshOptions& options, TimePoint deadline,
                                const Logger& logger) {
  Listeners listeners;
  if (options.size == 1) return listeners;
  const Transport transport = options.tcp_only ? Transport::kTcp : Transport::kUnix;
  HVL_ASSIGN_OR_RETURN(listeners.local, Listen(transport));
  HVL_ASSIGN_OR_RETURN(const std::string host, NetworkHost(store, options, deadline, logger));
  HVL_ASSIGN_OR_RETURN(listeners.data, ListenOn(host.empty() ? "127.0.0.1" : host));
  if (host.empty()) return listeners;
  HVL_ASSIGN_OR_RETURN(listeners.leader, ListenOn(host));
  return listeners;
}

/// What both kinds of links have in common.
ConnectPlan PlanOf(const MeshOptions& options, const MeshWorld& world, Listener listener,
                   TimePoint deadline) {
  return {.rank = options.rank,
          .peers = {},
          .job_id = options.job_id,
          .generation = world.generation,
          .channel = Channel::kControl,
          .secret = options.secret,
          .listener = std::move(listener),
          .addresses = std::vector<std::string>(world.hosts.size()),
          .process_fds = std::vector<int>(world.hosts.size(), -1),
          .deadline = deadline};
}

/// Connects with the ranks of this host.
Status ConnectHost(ConnectPlan plan, const HostTree& tree, const std::vector<RankCard>& cards,
                   const Logger& logger, std::vector<PeerLink>& links) {
  HVL_ASSIGN_OR_RETURN(const Transport transport, TransportOf(plan.listener.address));
  for (std::size_t i = 0; i < links.size(); ++i) {
    const int peer = static_cast<int>(i);
    if (peer == plan.rank || !tree.on_this_host(peer)) continue;
    plan.peers.push_back(peer);
    plan.addresses[i] = cards[i].address;
    plan.process_fds[i] = links[i].process_fd.get();
  }
  const std::vector<int> peers = plan.peers;
  HVL_ASSIGN_OR_RETURN(std::vector<ProvenLink> proven, ConnectAll(std::move(plan), logger));
  for (const int peer : peers) {
    PeerLink& link = links[static_cast<std::size_t>(peer)];
    link.socket = std::move(proven[static_cast<std::size_t>(peer)].socket);
    if (transport == Transport::kUnix) HVL_RETURN_IF_ERROR(CheckProcess(link, peer));
  }
  return Status::Ok();
}

/// Connects with the leaders of neighbouring hosts.
Status ConnectLeaders(ConnectPlan plan, Duration silence_limit, const HostTree& tree,
                      const std::vector<RankCard>& cards, const Logger& logger,
                      std::vector<PeerLink>& links) {
  plan.peers = tree.neighbours();
  plan.watch_listeners = true;
  plan.silence_limit = silence_limit;
  for (const int peer : plan.peers) {
    const RankCard& card = cards[static_cast<std::size_t>(peer)];
    if (card.leader_address.empty() || !plan.listener.socket.valid()) {
      return {StatusCode::kUnavailable,
              Format("ranks {} and {} are on different hosts ({} and {}), but met at a store that "
                     "serves one host only",
                     plan.rank, peer, cards[static_cast<std::size_t>(plan.rank)].host_name,
                     card.host_name),
              peer};
    }
    plan.addresses[static_cast<std::size_t>(peer)] = card.leader_address;
  }
  const std::vector<int> peers = plan.peers;
  HVL_ASSIGN_OR_RETURN(std::vector<ProvenLink> proven, ConnectAll(std::move(plan), logger));
  for (const int peer : peers) {
    ProvenLink& link = proven[static_cast<std::size_t>(peer)];
    links[static_cast<std::size_t>(peer)].socket = std::move(link.socket);
    links[static_cast<std::size_t>(peer)].keys = link.keys;
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Join(Store& store, MeshOptions options, Logger logger) {
  const TimePoint deadline = SteadyClock().Now() + options.timeout;
  HVL_RETURN_IF_ERROR(CheckJobId(options.job_id));
  HVL_RETURN_IF_ERROR(CheckJoin(options.rank, options.size, options.blob.size()));
  HVL_ASSIGN_OR_RETURN(Listeners listeners, OpenListeners(store, options, deadline, logger));
  const RankCard own_card{.address = listeners.local.address,
                          .leader_address = listeners.leader.address,
                          .data_address = listeners.data.address,
                          .pid = static_cast<std::uint32_t>(::getpid()),
                          .pid_scope = PidScope(),
                          .host_id = options.host_id.empty() ? HostId() : options.host_id,
                          .host_name = HostName(),
                          .blob = options.blob};
  MeshWorld world;
  HVL_ASSIGN_OR_RETURN(const std::vector<RankCard> cards,
                       Meet(store, own_card, &options, &world.generation));
  HVL_ASSIGN_OR_RETURN(world.hosts, NumberHosts(cards));
  std::vector<PeerLink> links = WatchPeers(cards, own_card);
  for (const RankCard& card : cards) {
    world.blobs.push_back(card.blob);
    world.host_names.push_back(card.host_name);
    world.data_addresses.push_back(card.data_address);
  }
  const HostTree tree(world.hosts, options.rank, options.radix);
  if (options.size > 1) {
    HVL_RETURN_IF_ERROR(ConnectHost(PlanOf(options, world, std::move(listeners.local), deadline),
                                    tree, cards, logger, links));
    HVL_RETURN_IF_ERROR(
        ConnectLeaders(PlanOf(options, world, std::move(listeners.leader), deadline),
                       options.silence_limit, tree, cards, logger, links));
  }
  return SocketMesh::Create(std::move(options), std::move(world), std::move(links),
                            std::move(listeners.data), std::move(logger));
}

}  // namespace hvl::net
