#include "csrc/collective/tcp_move.h"

#include <algorithm>
#include <deque>

// Terms: N ranks, K bytes that every rank ends up with. Costs are per rank.

namespace hvl::collective {
namespace {

// What ranks hold for others at a time in an exchange by grid, about.
constexpr std::size_t kRelayedBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastTurnBytes = 1 << 10;

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

namespace {

// One rank's part in an exchange by grid.
class GridExchange {
 public:
  GridExchange(TcpGroup& group, const ExchangeGrid& grid, std::span<const std::size_t> pair_bytes,
               const std::vector<ScatterList>& outgoing, const std::vector<ScatterList>& incoming)
      : group_(group),
        grid_(grid),
        pair_bytes_(pair_bytes),
        outgoing_(outgoing),
        incoming_(incoming),
        ranks_(static_cast<std::size_t>(group.size())) {
    const int own = group.rank();
    for (int from = 0; from < group.size(); ++from) {
      for (int to = 0; to < group.size(); ++to) {
        if (from == to) continue;
        longest_ = std::max(longest_, Of(from, to));
        if (Of(from, to) > 0 && grid.Via(from, to) == own) through_.push_back({from, to});
      }
    }
  }

  std::size_t longest() const { return longest_; }

  /// Bytes [begin, end) of each pair's, in two steps.
  Status Turn(std::size_t begin, std::size_t end, TransferHeader header) {
    Lists first = Lists(ranks_);
    Lists second = Lists(ranks_);
    AddOwn(begin, end, first, second);
    AddThrough(begin, end, first, second);
    HVL_RETURN_IF_ERROR(ExchangeAll(group_, first.outgoing, first.incoming, header));
    ++header.phase;
    return ExchangeAll(group_, second.outgoing, second.incoming, header);
  }

 private:
  struct Lists {
    explicit Lists(std::size_t ranks) : outgoing(ranks), incoming(ranks) {}
    std::vector<ScatterList> outgoing, incoming;  // by neighbour
  };
  struct Pair {
    int from, to;
  };

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t Of(int from, int to) const { return pair_bytes_[Index(from) * ranks_ + Index(to)]; }
  static ScatterList Cut(const ScatterList& list, std::size_t begin, std::size_t end) {
    return list.Slice(std::min(begin, list.bytes()), std::min(end, list.bytes()));
  }

  // What this rank hands to others to be passed on, and gets from those who did.
  void AddOwn(std::size_t begin, std::size_t end, Lists& first, Lists& second) const {
    const int own = group_.rank();
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (peer == own) continue;
      if (const int via = grid_.Via(own, peer); via != own)
        first.outgoing[Index(via)].Append(Cut(outgoing_[Index(peer)], begin, end));
      if (const int via = grid_.Via(peer, own); via != own)
        second.incoming[Index(via)].Append(Cut(incoming_[Index(peer)], begin, end));
    }
  }

  // What passes this rank, or ends or starts here. Both ends of a stream have its parts in the same
  // order: that of the ranks they come from, then of those they go to.
  void AddThrough(std::size_t begin, std::size_t end, Lists& first, Lists& second) {
    const int own = group_.rank();
    const auto part_bytes = [&](const Pair& pair) {
      return std::min(Of(pair.from, pair.to), end) - std::min(Of(pair.from, pair.to), begin);
    };
    std::size_t relayed_bytes = 0;
    for (const Pair& pair : through_)
      if (pair.from != own && pair.to != own) relayed_bytes += part_bytes(pair);
    std::span<std::byte> memory = group_.Scratch(relayed_bytes);
    for (const Pair& pair : through_) {
      ScatterList& in = first.incoming[Index(pair.from)];
      ScatterList& out = second.outgoing[Index(pair.to)];
      if (pair.from == own) {
        out.Append(Cut(outgoing_[Index(pair.to)], begin, end));
      } else if (pair.to == own) {
        in.Append(Cut(incoming_[Index(pair.from)], begin, end));
      } else {
        const std::size_t bytes = part_bytes(pair);
        in.Add(memory.data(), bytes);
        out.Add(memory.data(), bytes);
        memory = memory.subspan(bytes);
      }
    }
  }

  TcpGroup& group_;
  const ExchangeGrid& grid_;
  const std::span<const std::size_t> pair_bytes_;
  const std::vector<ScatterList>& outgoing_;
  const std::vector<ScatterList>& incoming_;
  const std::size_t ranks_;
  std::size_t longest_ = 0;
  std::vector<Pair> through_;  // those whose Via is this rank, in order
};

}  // namespace

// A rank talks to its row and to its column only: everything goes along the row first, to the rank
// in the right column, which passes it on along the column (or the other way around where the row
// is too short; see ExchangeGrid). Two steps of about sqrt N messages each, with 2 (sqrt N - 1)
// neighbours; what is neither in the row nor in the column crosses the network twice, in all nearly
// twice the bytes of direct exchange. In turns, so that what waits to be passed on needs no more
// than kRelayedBytes.
Status ExchangeByGrid(TcpGroup& group, const ExchangeGrid& grid,
                      std::span<const std::size_t> pair_bytes,
                      const std::vector<ScatterList>& outgoing,
                      const std::vector<ScatterList>& incoming, TransferHeader header) {
  GridExchange exchange(group, grid, pair_bytes, outgoing, incoming);
  const std::size_t turn_bytes =
      std::max(kRelayedBytes / static_cast<std::size_t>(group.size()), kLeastTurnBytes);
  for (std::size_t begin = 0; begin < exchange.longest(); begin += turn_bytes) {
    HVL_RETURN_IF_ERROR(exchange.Turn(begin, begin + turn_bytes, header));
    header.phase = static_cast<std::uint8_t>(header.phase + 2);
  }
  return Status::Ok();
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
