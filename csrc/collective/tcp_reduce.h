// Allreduce and reduce-scatter over TCP: the ways there are, and which one is taken when. All of
// them are explained in tcp_reduce.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/collective/tcp.h"
#include "csrc/collective/tcp_group.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/collective/widened.h"
#include "csrc/tensor/reduce.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// What has to be reduced. All vectors are cut into parts, one per rank: the share of the work for
/// an allreduce, and what each rank gets for a reduce-scatter.
struct Reduction {
  ScatterList input = {};                // of this rank, the whole vector
  ScatterList output = {};               // the whole vector when `everywhere`, else the own part
  std::vector<std::size_t> bounds = {};  // part p is [bounds[p], bounds[p + 1]) of the vector
  bool everywhere = true;                // allreduce; else reduce-scatter
  tensor::ReduceSpec spec = {};
  TransferHeader header = {};

  std::size_t bytes() const { return input.bytes(); }
  std::size_t PartBytes(int part) const {
    const auto p = static_cast<std::size_t>(part);
    return bounds[p + 1] - bounds[p];
  }
  ScatterList InputPart(int part) const {
    const auto p = static_cast<std::size_t>(part);
    return input.Slice(bounds[p], bounds[p + 1]);
  }
  /// Only if everywhere.
  ScatterList OutputPart(int part) const {
    const auto p = static_cast<std::size_t>(part);
    return output.Slice(bounds[p], bounds[p + 1]);
  }
};

/// `parts` + 1 bounds of nearly equal parts of a vector, cut between elements; where there are
/// fewer elements than parts, some are empty.
std::vector<std::size_t> EvenBounds(std::size_t bytes, std::size_t element_bytes,
                                    std::size_t parts);

/// What the choice of a way depends on, the same on all ranks.
struct ReduceCase {
  int ranks = 1;
  std::size_t bytes = 0;
  bool everywhere = true;
  tensor::ReduceSpec spec = {};
};

/// What a widened reduction has to know of the groups of `options`: in others it cannot be made.
SumGroups GroupsOf(int ranks, const TcpOptions& options);

/// The fastest way that gives the bits that `options` ask for.
ReduceWay ChooseReduceWay(const ReduceCase& what, const TcpOptions& options);

/// Needs at least two ranks and one byte, and any way but kWidened. Inputs may be outputs, exactly.
Status Reduce(TcpGroup& group, ReduceWay way, Reduction& reduction);

/// On this rank alone: the reduction of one input.
void ReduceAlone(Reduction& reduction);

}  // namespace hvl::collective
