#include "csrc/collective/tcp_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <limits>

#include "csrc/base/check.h"
#include "csrc/collective/tcp_move.h"

// Terms: N ranks, K bytes of the whole vector, part p as in Reduction. A chunk is what moves and is
// reduced in one step. A partial sum is the sum of some ranks' inputs, on its way to others. Costs
// are per rank; "sum" stands for any operation.

namespace hvl::collective {
namespace {

// How many bytes a link moves in the time that one more step takes: 25 us at 2 GB/s.
constexpr std::size_t kBytesPerStep = 50'000;
// Halving moves and adds by turns, through a window of half the vector: only for what fits into a
// second-level cache. A ring does both at the same time.
constexpr std::size_t kMostHalvingBytes = 1 << 20;
// Chunks of a chain, which has many steps to fill: from this on, and small against the vector.
constexpr std::size_t kLeastChainChunkBytes = 4 << 10;

// The element-wise reduction of `bytes` bytes at `offset` of several streams into another one.
void ReduceRange(const tensor::ReduceSpec& spec, std::span<const int> group_ends,
                 std::span<StreamMemory* const> inputs, StreamMemory& output, std::size_t offset,
                 std::size_t bytes) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::vector<const void*> pointers(inputs.size());
  while (bytes > 0) {
    const std::span<std::byte> target = output.At(offset);
    std::size_t step = std::min(bytes, target.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::span<std::byte> source = inputs[i]->At(offset);
      pointers[i] = source.data();
      step = std::min(step, source.size());
    }
    tensor::Reduce(spec, group_ends, pointers, target.data(),
                   static_cast<std::int64_t>(step / element_bytes));
    offset += step;
    bytes -= step;
  }
}

// The same of a partial sum of other ranks and what this rank has, or of one input alone.
void AddRange(const tensor::ReduceSpec& spec, std::span<StreamMemory* const> inputs,
              StreamMemory& output, std::size_t offset, std::size_t bytes) {
  ReduceRange(spec, {}, inputs, output, offset, bytes);
}

// Whether partial sums may travel in the element type. Not when a later step would see more than
// the type holds: an average of integers, or scale factors before the sum.
bool PartialsTravel(const tensor::ReduceSpec& spec) {
  return spec.prescale == 1.0 && tensor::PartialsKeepResult(spec);
}

// Whether the result has the same bits in whatever order partial sums are made.
bool OrderIsFree(const tensor::ReduceSpec& spec) {
  return PartialsTravel(spec) && !tensor::IsFloat(spec.dtype);
}

// Whether sums are made group by group, each rounded to the element type, and that can be seen. Not
// where each group is one rank, unless a scale factor makes its partial sum another number.
bool SumsInGroups(const ReduceCase& what, std::span<const int> group_ends) {
  if (group_ends.size() <= 1 || !tensor::IsFloat(what.spec.dtype)) return false;
  return std::ssize(group_ends) != what.ranks || what.spec.prescale != 1.0;
}

// Whether partial sums that travel from rank to rank give the bits of one reduction in rank order:
// it adds in the element type as well, and not group by group.
bool PartialsKeepBits(const ReduceCase& what, std::span<const int> group_ends) {
  if (OrderIsFree(what.spec)) return true;
  const DType dtype = what.spec.dtype;
  const bool adds_wider = dtype == DType::kFloat16 || dtype == DType::kBfloat16;
  return PartialsTravel(what.spec) && !adds_wider && !SumsInGroups(what, group_ends);
}

// --- Gather and fold --------------------------------------------------------------------------

// Small vectors: everybody gets all inputs and reduces what it needs of them, in rank order.
// ceil(log2 N) steps instead of the 2 and more of the others, for (N-1) K bytes.
Status ReduceByGather(TcpGroup& group, Reduction& reduction) {
  const auto own = static_cast<std::size_t>(group.rank());
  const std::size_t bytes = reduction.bytes();
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<RingWindow> windows = group.Windows(ranks, bytes);
  std::vector<ScatterList> slices(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank == own) {
      slices[rank] = reduction.input;
    } else {
      slices[rank].Add(windows[rank].At(0).data(), bytes);
    }
  }
  HVL_RETURN_IF_ERROR(GatherByDoubling(group, slices, reduction.header));
  if (!reduction.everywhere) {
    for (ScatterList& slice : slices)
      slice = slice.Slice(reduction.bounds[own], reduction.bounds[own + 1]);
  }
  std::vector<StreamMemory*> inputs;
  for (ScatterList& slice : slices) inputs.push_back(&slice);
  ReduceRange(reduction.spec, group.options().group_ends, inputs, reduction.output, 0,
              reduction.output.bytes());
  return Status::Ok();
}

// --- Pairwise exchange ------------------------------------------------------------------------

// Each rank sends part j of its input to rank j and gets its own part from all others, chunk by
// chunk through bounded windows. A chunk that has come from everybody is reduced in rank order, so
// that each element is the same sum whatever the parts, chunks and timing are. In an allreduce each
// stream goes on with the sender's finished part, as far as it is finished: two steps, of N-1
// messages at the same time, that flow into one another. Bytes as around a ring: (N-1) K / N out
// and in, twice that in an allreduce.
//
// In place (output == input) this is safe: of the own part nothing is sent before it is a result,
// and a piece of the result of part j comes from rank j only after j got what this rank had there.
class PairwiseExchange {
 public:
  PairwiseExchange(TcpGroup& group, Reduction& reduction)
      : group_(group),
        reduction_(reduction),
        chunk_bytes_(group.ChunkBytes(static_cast<std::size_t>(group.size()))),
        window_bytes_(TcpGroup::kWindowChunks * chunk_bytes_),
        own_bytes_(reduction.PartBytes(group.rank())),
        own_input_(reduction.InputPart(group.rank())),
        own_output_(reduction.everywhere ? reduction.OutputPart(group.rank()) : reduction.output),
        windows_(group.Windows(static_cast<std::size_t>(group.size()), window_bytes_)),
        inputs_(static_cast<std::size_t>(group.size()), &own_input_),
        transfer_(group.NewTransfer(reduction.header)) {}

  Status Run() {
    // Everybody starts with another peer, so that nobody is everybody's first.
    for (int distance = 1; distance < group_.size(); ++distance) {
      AddSend(group_.RankAfter(distance));
      AddReceive(group_.RankAfter(-distance));
    }
    return transfer_.Run([this] { Advance(); });
  }

 private:
  struct Outgoing {
    std::size_t stream;
    std::size_t input_bytes;  // before the result
  };

  void AddSend(int to) {
    ScatterList& list = outgoing_.emplace_back(reduction_.InputPart(to));
    const std::size_t input_bytes = list.bytes();
    if (reduction_.everywhere) list.Append(own_output_);
    out_.push_back({transfer_.Send(to, list, list.bytes(), input_bytes), input_bytes});
  }

  void AddReceive(int from) {
    RingWindow& window = windows_[static_cast<std::size_t>(from)];
    inputs_[static_cast<std::size_t>(from)] = &window;
    ScatterList& result = results_.emplace_back();
    if (reduction_.everywhere) result = reduction_.OutputPart(from);
    JoinedMemory& memory = incoming_.emplace_back(window, own_bytes_, result);
    const std::size_t bytes = own_bytes_ + result.bytes();
    in_.push_back(transfer_.Receive(from, memory, bytes, ReceiveLimit()));
  }

  // Within the window, unless all that is left of the inputs fits into it.
  std::size_t ReceiveLimit() const {
    const std::size_t room = reduced_ + window_bytes_;
    return room >= own_bytes_ ? std::numeric_limits<std::size_t>::max() : room;
  }

  void Advance() {
    const std::size_t before = reduced_;
    std::size_t arrived = own_bytes_;
    for (const std::size_t stream : in_) arrived = std::min(arrived, transfer_.done(stream));
    while (reduced_ < own_bytes_) {
      const std::size_t step = std::min(chunk_bytes_, own_bytes_ - reduced_);
      if (arrived - reduced_ < step) break;
      ReduceRange(reduction_.spec, group_.options().group_ends, inputs_, own_output_, reduced_,
                  step);
      reduced_ += step;
    }
    if (reduced_ == before) return;
    for (const std::size_t stream : in_) transfer_.SetLimit(stream, ReceiveLimit());
    if (!reduction_.everywhere) return;
    for (const Outgoing& out : out_) transfer_.SetLimit(out.stream, out.input_bytes + reduced_);
  }

  TcpGroup& group_;
  Reduction& reduction_;
  const std::size_t chunk_bytes_;
  const std::size_t window_bytes_;
  const std::size_t own_bytes_;
  ScatterList own_input_;
  ScatterList own_output_;
  std::vector<RingWindow> windows_;    // by rank
  std::vector<StreamMemory*> inputs_;  // by rank
  std::deque<ScatterList> outgoing_;
  std::deque<ScatterList> results_;
  std::deque<JoinedMemory> incoming_;
  Transfer transfer_;
  std::vector<Outgoing> out_;
  std::vector<std::size_t> in_;
  std::size_t reduced_ = 0;
};

// --- Chain ------------------------------------------------------------------------------------

// Partial sums go up the chain of ranks, 0 to N-1, each rank adding its own input: the order of one
// reduction. The finished sums come down again, each rank keeping what it needs and passing on what
// those below need. All in chunks that flow through windows, so that both directions of all links
// are busy at the same time.
//
// 2 (N-1) steps, which overlap; two neighbours; K bytes up and, in an allreduce, K down, together
// 2 (N-1) K of all ranks, as around a ring.
//
// In place this is safe: a finished sum comes only after the own input has gone up in its sum.
class Chain {
 public:
  Chain(TcpGroup& group, Reduction& reduction)
      : group_(group),
        reduction_(reduction),
        bytes_(reduction.bytes()),
        below_bytes_(BelowBytes()),
        chunk_bytes_(ChunkBytes()),
        window_bytes_(TcpGroup::kWindowChunks * chunk_bytes_),
        windows_(group.Windows(3, window_bytes_)),
        down_output_(reduction.output),
        down_memory_(windows_[2], below_bytes_, down_output_),
        transfer_(group.NewTransfer(reduction.header)) {}

  Status Run() {
    const int rank = group_.rank();
    if (is_first()) {
      up_out_ = transfer_.Send(rank + 1, reduction_.input, bytes_, bytes_);
    } else {
      up_in_ = transfer_.Receive(rank - 1, windows_[0], bytes_, std::min(bytes_, window_bytes_));
      if (!is_last()) up_out_ = transfer_.Send(rank + 1, windows_[1], bytes_, 0);
    }
    if (!is_last()) {
      const std::size_t sink_bytes =
          reduction_.everywhere ? bytes_ : reduction_.bounds[static_cast<std::size_t>(rank) + 1];
      down_in_ = transfer_.Receive(rank + 1, sink(), sink_bytes, DownRoom());
    }
    ScatterList output = reduction_.output;  // read at another place than it is written
    if (!is_first()) {
      StreamMemory& source = reduction_.everywhere ? static_cast<StreamMemory&>(output)
                                                   : static_cast<StreamMemory&>(windows_[2]);
      down_out_ = transfer_.Send(rank - 1, source, below_bytes_, 0);
    }
    return transfer_.Run([this] { Advance(); });
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  bool is_last() const { return group_.rank() + 1 == group_.size(); }

  // What the ranks below need: everything, or their parts, which come first in the vector.
  std::size_t BelowBytes() const {
    if (reduction_.everywhere) return is_first() ? 0 : bytes_;
    return reduction_.bounds[static_cast<std::size_t>(group_.rank())];
  }
  std::size_t ChunkBytes() const {
    const std::size_t filled = bytes_ / (4 * static_cast<std::size_t>(group_.size()));
    const std::size_t most = group_.ChunkBytes(3);
    return std::min(std::max(std::bit_floor(filled), kLeastChainChunkBytes), most);
  }

  // Where finished sums go: to the output, or through a window where they are for others only.
  StreamMemory& sink() {
    return reduction_.everywhere ? static_cast<StreamMemory&>(down_output_)
                                 : static_cast<StreamMemory&>(down_memory_);
  }
  std::size_t DownRoom() const {
    const std::size_t room = sent_down() + window_bytes_;
    return reduction_.everywhere || room >= below_bytes_ ? std::numeric_limits<std::size_t>::max()
                                                         : room;
  }
  std::size_t UpRoom() const {
    return is_last() ? DownRoom() : transfer_.done(up_out_) + window_bytes_;
  }
  std::size_t sent_down() const { return is_first() ? 0 : transfer_.done(down_out_); }

  void Advance() {
    if (!is_first()) AddOwn();
    const std::size_t finished = is_last() ? reduced_ : transfer_.done(down_in_);
    if (!is_first()) transfer_.SetLimit(down_out_, std::min(below_bytes_, finished));
    if (!is_last()) transfer_.SetLimit(down_in_, DownRoom());
  }

  void AddOwn() {
    const tensor::ReduceSpec spec =
        is_last() ? reduction_.spec : tensor::PartialSpec(reduction_.spec);
    StreamMemory& target = is_last() ? sink() : windows_[1];
    StreamMemory* const inputs[] = {windows_.data(), &reduction_.input};
    const std::size_t arrived = transfer_.done(up_in_);
    while (reduced_ < bytes_) {
      const std::size_t step = std::min(chunk_bytes_, bytes_ - reduced_);
      if (arrived - reduced_ < step || reduced_ + step > UpRoom()) break;
      AddRange(spec, inputs, target, reduced_, step);
      reduced_ += step;
    }
    transfer_.SetLimit(up_in_, std::min(bytes_, reduced_ + window_bytes_));
    if (!is_last()) transfer_.SetLimit(up_out_, reduced_);
  }

  TcpGroup& group_;
  Reduction& reduction_;
  const std::size_t bytes_;
  const std::size_t below_bytes_;
  const std::size_t chunk_bytes_;
  const std::size_t window_bytes_;
  std::vector<RingWindow> windows_;  // of sums that come, of sums that go on, of what comes down
  ScatterList down_output_;
  JoinedMemory down_memory_;
  Transfer transfer_;
  std::size_t up_in_ = 0;
  std::size_t up_out_ = 0;
  std::size_t down_in_ = 0;
  std::size_t down_out_ = 0;
  std::size_t reduced_ = 0;
};

// --- Halving and doubling ---------------------------------------------------------------------

// R. Rabenseifner, "Optimization of collective reduction operations", 2004; R. Thakur, R.
// Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005.
//
// With P = the largest power of two up to N: of the first 2 (N-P) ranks the even ones give their
// input to the next rank and wait for the result. The P others halve: in step d = P/2 .. 1 each
// keeps one half of what it has left and swaps the other half with the rank whose number differs
// in that bit, and adds. Then they double: they swap results in the opposite order.
//
// 2 log2 P steps with one message each (and 2 more where N is not a power of two), log2 P
// neighbours, 2 (P-1) K / P bytes. The order of a sum depends on N only, but it is not rank order.
class HalvingDoubling {
 public:
  HalvingDoubling(TcpGroup& group, Reduction& reduction)
      : group_(group),
        reduction_(reduction),
        ranks_(static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())))),
        extra_(group.size() - ranks_),
        bounds_(EvenBounds(reduction.bytes(), DTypeBytes(reduction.spec.dtype),
                           static_cast<std::size_t>(ranks_))),
        window_(group.Scratch(reduction.bytes())),
        sums_(reduction.input) {}

  Status Run() {
    const bool paired = group_.rank() < 2 * extra_;
    const auto last_phase = static_cast<std::uint8_t>(1 + 2 * std::countr_zero(Unsigned(ranks_)));
    if (paired && group_.rank() % 2 == 0) {
      HVL_RETURN_IF_ERROR(Swap(group_.rank() + 1, reduction_.input, {}, 0));
      return Swap(group_.rank() + 1, {}, reduction_.output, last_phase);
    }
    if (paired) {
      HVL_RETURN_IF_ERROR(Swap(group_.rank() - 1, {}, Window(reduction_.bytes()), 0));
      Add(reduction_.output, reduction_.input, true, tensor::PartialSpec(reduction_.spec));
      sums_ = reduction_.output;
    }
    HVL_RETURN_IF_ERROR(HalveAndDouble());
    if (!paired) return Status::Ok();
    return Swap(group_.rank() - 1, reduction_.output, {}, last_phase);
  }

 private:
  static unsigned Unsigned(int value) { return static_cast<unsigned>(value); }
  int RankOf(int number) const { return number < extra_ ? 2 * number + 1 : number + extra_; }
  ScatterList Parts(const ScatterList& list, int begin, int end) const {
    return list.Slice(bounds_[Unsigned(begin)], bounds_[Unsigned(end)]);
  }
  ScatterList Window(std::size_t bytes) const {
    ScatterList list;
    list.Add(window_.data(), bytes);
    return list;
  }

  Status HalveAndDouble() {
    const int number = group_.rank() < 2 * extra_ ? group_.rank() / 2 : group_.rank() - extra_;
    std::uint8_t phase = 1;
    int begin = 0;  // the parts that this rank has sums of
    for (int distance = ranks_ / 2; distance > 0; distance /= 2) {
      const bool keeps_upper = (number & distance) != 0;
      const int kept = keeps_upper ? begin + distance : begin;
      const int given = keeps_upper ? begin : begin + distance;
      const ScatterList own = Parts(sums_, kept, kept + distance);
      HVL_RETURN_IF_ERROR(Swap(RankOf(number ^ distance), Parts(sums_, given, given + distance),
                               Window(own.bytes()), phase++));
      Add(Parts(reduction_.output, kept, kept + distance), own, keeps_upper,
          distance == 1 ? reduction_.spec : tensor::PartialSpec(reduction_.spec));
      sums_ = reduction_.output;
      begin = kept;
    }
    for (int distance = 1; distance < ranks_; distance *= 2) {
      const int theirs = begin ^ distance;
      HVL_RETURN_IF_ERROR(Swap(RankOf(number ^ distance), Parts(sums_, begin, begin + distance),
                               Parts(sums_, theirs, theirs + distance), phase++));
      begin = std::min(begin, theirs);
    }
    return Status::Ok();
  }

  // Where nothing goes or comes by the algorithm, there is no stream either.
  Status Swap(int peer, ScatterList sent, ScatterList received, std::uint8_t phase) {
    TransferHeader header = reduction_.header;
    header.phase = phase;
    Transfer transfer = group_.NewTransfer(header);
    if (sent.bytes() > 0) transfer.Send(peer, sent, sent.bytes(), sent.bytes());
    if (received.bytes() > 0) transfer.Receive(peer, received, received.bytes(), received.bytes());
    return transfer.Run();
  }

  // What has come into the window is of lower ranks, or of higher ones.
  void Add(ScatterList target, ScatterList own, bool window_first, const tensor::ReduceSpec& spec) {
    ScatterList window = Window(own.bytes());
    std::array<StreamMemory*, 2> inputs = {&window, &own};
    if (!window_first) std::swap(inputs[0], inputs[1]);
    AddRange(spec, inputs, target, 0, target.bytes());
  }

  TcpGroup& group_;
  Reduction& reduction_;
  const int ranks_;  // that halve and double: P
  const int extra_;
  const std::vector<std::size_t> bounds_;
  const std::span<std::byte> window_;
  ScatterList sums_;  // the input, until something has been added to it
};

// --- Ring -------------------------------------------------------------------------------------

// The ring of Baidu's allreduce (A. Gibiansky, "Bringing HPC Techniques to Deep Learning", 2017),
// after P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel Distrib. Comput. 69 (2009). In step s = 0 .. N-2 rank r sends the
// partial sum of part r-s-1 to its right neighbour, receives that of part r-s-2 from its left one,
// and adds its own. The last that arrives is part r, then complete. In N-1 more steps the finished
// parts go around.
//
// 2 (N-1) steps, two neighbours, 2 (N-1) K / N bytes. Here the steps flow into one another: what
// comes in is partial sums of parts r-2, r-3, .., r, then results of parts r-1, r-2, .., r+1; what
// goes out is part r-1 of the input, then all that came in as it is after the addition, but for the
// last result. The sum of part j has the order j+1, j+2, .., j: it depends on the part, hence on
// the place of an element in the fused vector.
//
// In place this is safe: a result of part p comes only after this rank's sum of it has gone out.
class Ring {
 public:
  Ring(TcpGroup& group, Reduction& reduction)
      : reduction_(reduction),
        partial_spec_(tensor::PartialSpec(reduction.spec)),
        chunk_bytes_(group.ChunkBytes(1)),
        window_bytes_(TcpGroup::kWindowChunks * chunk_bytes_),
        windows_(group.Windows(1, window_bytes_)),
        outgoing_(reduction.InputPart(group.RankAfter(-1))),
        first_bytes_(outgoing_.bytes()),
        transfer_(group.NewTransfer(reduction.header)) {
    for (int s = 2; s <= group.size(); ++s) {
      const int part = group.RankAfter(-s);
      own_input_.Append(reduction.InputPart(part));
      sums_.Append(reduction.OutputPart(part));
      ends_.push_back(sums_.bytes());
    }
    outgoing_.Append(sums_);
    for (int s = 1; s < group.size(); ++s) {
      const ScatterList result = reduction.OutputPart(group.RankAfter(-s));
      results_.Append(result);
      if (s + 1 < group.size()) outgoing_.Append(result);
    }
    out_ = transfer_.Send(group.RankAfter(1), outgoing_, outgoing_.bytes(), first_bytes_);
    incoming_.emplace_back(windows_.front(), sums_.bytes(), results_);
    in_ = transfer_.Receive(group.RankAfter(-1), incoming_.front(),
                            sums_.bytes() + results_.bytes(), ReceiveLimit());
  }

  Status Run() {
    return transfer_.Run([this] { Advance(); });
  }

 private:
  std::size_t ReceiveLimit() const {
    const std::size_t room = reduced_ + window_bytes_;
    return room >= sums_.bytes() ? std::numeric_limits<std::size_t>::max() : room;
  }

  void Advance() {
    StreamMemory* const inputs[] = {&windows_.front(), &own_input_};
    const std::size_t arrived = std::min(transfer_.done(in_), sums_.bytes());
    while (reduced_ < sums_.bytes()) {
      while (reduced_ == ends_[part_]) ++part_;
      // A chunk ends with its part: what follows may be waiting, around the ring, for this one.
      const std::size_t step = std::min(chunk_bytes_, ends_[part_] - reduced_);
      if (arrived - reduced_ < step) break;
      const bool last = part_ + 1 == ends_.size();
      AddRange(last ? reduction_.spec : partial_spec_, inputs, sums_, reduced_, step);
      reduced_ += step;
    }
    transfer_.SetLimit(in_, ReceiveLimit());
    const std::size_t results = transfer_.done(in_) - arrived;
    const std::size_t may_go = reduced_ < sums_.bytes() ? reduced_ : reduced_ + results;
    transfer_.SetLimit(out_, std::min(first_bytes_ + may_go, outgoing_.bytes()));
  }

  Reduction& reduction_;
  const tensor::ReduceSpec partial_spec_;
  const std::size_t chunk_bytes_;
  const std::size_t window_bytes_;
  std::vector<RingWindow> windows_;
  ScatterList outgoing_;
  const std::size_t first_bytes_;
  ScatterList own_input_;          // beside the incoming partial sums
  ScatterList sums_;               // where they go with the own input added
  std::vector<std::size_t> ends_;  // of the parts in there
  ScatterList results_;
  std::deque<JoinedMemory> incoming_;
  Transfer transfer_;
  std::size_t out_ = 0;
  std::size_t in_ = 0;
  std::size_t reduced_ = 0;
  std::size_t part_ = 0;  // where `reduced_` is
};

// --- Choice -----------------------------------------------------------------------------------

// Steps are worth kBytesPerStep bytes each; see the algorithms for the terms.
std::size_t HalvingCost(std::size_t ranks, std::size_t bytes) {
  const std::size_t power = std::bit_floor(ranks);
  const std::size_t steps = 2 * static_cast<std::size_t>(std::countr_zero(power));
  const std::size_t cost = steps * kBytesPerStep + 2 * (bytes - bytes / power);
  return power == ranks ? cost : cost + 2 * (kBytesPerStep + bytes);
}

// `way`, or what can replace it where it cannot do this.
ReduceWay Possible(ReduceWay way, const ReduceCase& what) {
  const bool is_for_all = way == ReduceWay::kGather || way == ReduceWay::kPairwise;
  const bool needs_everywhere = way == ReduceWay::kHalving || way == ReduceWay::kRing;
  const bool fits = PartialsTravel(what.spec) && (what.everywhere || !needs_everywhere);
  return is_for_all || fits ? way : ReduceWay::kPairwise;
}

std::size_t RingCost(std::size_t ranks, std::size_t bytes) {
  return 2 * (ranks - 1) * kBytesPerStep + 2 * (bytes - bytes / ranks);
}

}  // namespace

std::vector<std::size_t> EvenBounds(std::size_t bytes, std::size_t element_bytes,
                                    std::size_t parts) {
  const std::size_t elements = bytes / element_bytes;
  std::vector<std::size_t> bounds;
  for (std::size_t p = 0; p <= parts; ++p) {
    // elements * p / parts without the overflow of elements * p.
    const std::size_t begin = elements / parts * p + elements % parts * p / parts;
    bounds.push_back(begin * element_bytes);
  }
  return bounds;
}

SumGroups GroupsOf(int ranks, const TcpOptions& options) {
  return std::ssize(options.group_ends) == ranks ? SumGroups::kEachRank : SumGroups::kOne;
}

ReduceWay ChooseReduceWay(const ReduceCase& what, const TcpOptions& options) {
  const auto ranks = static_cast<std::size_t>(what.ranks);
  if (options.reduce_way) return Possible(*options.reduce_way, what);
  const bool any_order =
      PartialsTravel(what.spec) && (!options.reproducible || OrderIsFree(what.spec));
  if (what.bytes <= options.small_bytes / (ranks - 1)) return ReduceWay::kGather;
  if (what.everywhere && any_order) {
    const bool halves = what.bytes <= kMostHalvingBytes &&
                        HalvingCost(ranks, what.bytes) < RingCost(ranks, what.bytes);
    return halves ? ReduceWay::kHalving : ReduceWay::kRing;
  }
  if (what.ranks <= options.most_pairwise_ranks) return ReduceWay::kPairwise;
  if (PartialsKeepBits(what, options.group_ends)) return ReduceWay::kChain;
  const bool each_rank = GroupsOf(what.ranks, options) == SumGroups::kEachRank;
  const bool in_groups = SumsInGroups(what, options.group_ends) && !each_rank;
  return in_groups ? ReduceWay::kPairwise : ReduceWay::kWidened;
}

Status Reduce(TcpGroup& group, ReduceWay way, Reduction& reduction) {
  switch (way) {
    case ReduceWay::kGather:
      return ReduceByGather(group, reduction);
    case ReduceWay::kPairwise:
      return PairwiseExchange(group, reduction).Run();
    case ReduceWay::kChain:
      return Chain(group, reduction).Run();
    case ReduceWay::kHalving:
      return HalvingDoubling(group, reduction).Run();
    case ReduceWay::kRing:
      return Ring(group, reduction).Run();
    case ReduceWay::kWidened:
      break;  // made of operations of their own
  }
  HVL_CHECK(false, "no such way");
}

void ReduceAlone(Reduction& reduction) {
  StreamMemory* const own = &reduction.input;
  AddRange(reduction.spec, {&own, 1}, reduction.output, 0, reduction.bytes());
}

}  // namespace hvl::collective
