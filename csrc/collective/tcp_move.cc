#include "csrc/collective/tcp_move.h"

#include <algorithm>
#include <deque>

// Terms: N ranks, K bytes that every rank ends up with. Costs are per rank.

namespace hvl::collective {
namespace {

int RankFrom(const TcpGroup& group, int root, int relative) {
  return (root + relative) % group.size();
}

// Passes a vector on to `children` (counted from the root) as it comes from `parent`, byte by byte.
Status PassOn(TcpGroup& group, ScatterList& vector, int root, int parent,
              const std::vector<int>& children, const TransferHeader& header) {
  const bool is_root = group.rank() == root;
  const std::size_t bytes = vector.bytes();
  std::deque<ScatterList> outgoing;  // each stream reads at its own place
  std::vector<std::size_t> out;
  Transfer transfer = group.NewTransfer(header);
  std::size_t in = 0;
  if (!is_root) in = transfer.Receive(RankFrom(group, root, parent), vector, bytes, bytes);
  for (const int child : children) {
    out.push_back(transfer.Send(RankFrom(group, root, child), outgoing.emplace_back(vector), bytes,
                                is_root ? bytes : 0));
  }
  return transfer.Run([&transfer, &out, in, is_root] {
    if (is_root) return;
    for (const std::size_t stream : out) transfer.SetLimit(stream, transfer.done(in));
  });
}

}  // namespace

// The algorithm of J. Bruck et al., "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997, without its rotations, because every slice has its own
// place. Before the step that begins with `have` = 1, 2, 4, .., rank r has slices r .. r+have-1
// (modulo N). It sends them to rank r-have and gets slices r+have .. r+2have-1 from rank r+have;
// in the last step only those that are missing.
//
// ceil(log2 N) steps with as many neighbours on either side; K less the own slice in bytes.
Status GatherByDoubling(TcpGroup& group, const std::vector<ScatterList>& slices,
                        TransferHeader header) {
  for (int have = 1; have < group.size(); have *= 2) {
    const int count = std::min(have, group.size() - have);
    ScatterList outgoing;
    ScatterList incoming;
    for (int i = 0; i < count; ++i) {
      outgoing.Append(slices[static_cast<std::size_t>(group.RankAfter(i))]);
      incoming.Append(slices[static_cast<std::size_t>(group.RankAfter(have + i))]);
    }
    Transfer transfer = group.NewTransfer(header);
    transfer.Send(group.RankAfter(-have), outgoing, outgoing.bytes(), outgoing.bytes());
    transfer.Receive(group.RankAfter(have), incoming, incoming.bytes(), incoming.bytes());
    HVL_RETURN_IF_ERROR(transfer.Run());
    ++header.phase;
  }
  return Status::Ok();
}

// Rank r has slice r and passes to its right neighbour slice r, then every slice that comes from
// the left, but the one that the right neighbour started with. N-1 steps that flow into one
// another byte by byte, one neighbour on either side; K less one slice in bytes.
Status GatherAroundRing(TcpGroup& group, const std::vector<ScatterList>& slices,
                        const TransferHeader& header) {
  ScatterList outgoing;
  ScatterList incoming;
  for (int s = 0; s + 1 < group.size(); ++s) {
    outgoing.Append(slices[static_cast<std::size_t>(group.RankAfter(-s))]);
    incoming.Append(slices[static_cast<std::size_t>(group.RankAfter(-s - 1))]);
  }
  const std::size_t own_bytes = slices[static_cast<std::size_t>(group.rank())].bytes();
  Transfer transfer = group.NewTransfer(header);
  const std::size_t out = transfer.Send(group.RankAfter(1), outgoing, outgoing.bytes(),
                                        std::min(own_bytes, outgoing.bytes()));
  const std::size_t in =
      transfer.Receive(group.RankAfter(-1), incoming, incoming.bytes(), incoming.bytes());
  return transfer.Run([&transfer, &outgoing, out, in, own_bytes] {
    transfer.SetLimit(out, std::min(outgoing.bytes(), own_bytes + transfer.done(in)));
  });
}

// A binomial tree. v is the rank counted from the root. The parent of v is v without its lowest bit
// that is set, and its children are v plus each power of two below that bit. ceil(log2 N) steps; a
// rank sends up to ceil(log2 N) K bytes.
Status BroadcastDownTree(TcpGroup& group, ScatterList& vector, int root,
                         const TransferHeader& header) {
  const int v = (group.rank() - root + group.size()) % group.size();
  const int lowest_bit = v & -v;
  std::vector<int> children;
  int bit = lowest_bit;
  if (v == 0)
    for (bit = 1; bit < group.size();) bit *= 2;
  // The largest subtree first: it has the longest way.
  for (bit /= 2; bit > 0; bit /= 2)
    if (v + bit < group.size()) children.push_back(v + bit);
  return PassOn(group, vector, root, v - lowest_bit, children, header);
}

// Every link carries the vector once and all links are busy at the same time: about K / bandwidth
// and N-1 times the way of a first byte, however many ranks.
Status BroadcastAlongChain(TcpGroup& group, ScatterList& vector, int root,
                           const TransferHeader& header) {
  const int v = (group.rank() - root + group.size()) % group.size();
  std::vector<int> children;
  if (v + 1 < group.size()) children.push_back(v + 1);
  return PassOn(group, vector, root, v - 1, children, header);
}

// Everybody sends to everybody, straight from inputs to outputs: one step of at most N-1 messages,
// the bytes that have to move and no more. Pairs that have nothing for one another say nothing.
Status ExchangeAll(TcpGroup& group, std::vector<ScatterList>& outgoing,
                   std::vector<ScatterList>& incoming, const TransferHeader& header) {
  Transfer transfer = group.NewTransfer(header);
  // Everybody starts with another peer, so that nobody is everybody's first.
  for (int distance = 1; distance < group.size(); ++distance) {
    const int to = group.RankAfter(distance);
    ScatterList& sent = outgoing[static_cast<std::size_t>(to)];
    if (sent.bytes() > 0) transfer.Send(to, sent, sent.bytes(), sent.bytes());
    const int from = group.RankAfter(-distance);
    ScatterList& received = incoming[static_cast<std::size_t>(from)];
    if (received.bytes() > 0) transfer.Receive(from, received, received.bytes(), received.bytes());
  }
  return transfer.Run();
}

// Dissemination (D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization",
// 1988): in round k every rank tells the one 2^k to the right and hears from the one 2^k to the
// left. After ceil(log2 N) rounds everybody has heard of everybody.
Status Meet(TcpGroup& group, TransferHeader header) {
  ScatterList nothing;
  for (int distance = 1; distance < group.size(); distance *= 2) {
    Transfer transfer = group.NewTransfer(header);
    transfer.Send(group.RankAfter(distance), nothing, 0, 0);
    transfer.Receive(group.RankAfter(-distance), nothing, 0, 0);
    HVL_RETURN_IF_ERROR(transfer.Run());
    ++header.phase;
  }
  return Status::Ok();
}

}  // namespace hvl::collective
