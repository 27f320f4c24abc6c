#include "horovodlite/torch/operations.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "csrc/torch/tensors.h"

namespace hvl::torch {
namespace {

using Gathered = std::vector<GatheredTensor>;

/// Whether whoever starts an operation waits for it next.
enum class Caller : bool { kGoesOn, kWaits };
enum class Place : bool { kNew, kInPlace };

/// One operation on its way to the runtime. What is wrong first is what its handle says.
class Call {
 public:
  Call(OpKind kind, const char* prefix, const Options& options) {
    operation().kind = kind;
    operation().process_set = options.process_set;
    if (!options.name.empty()) operation().name = c10::str(prefix, ".", options.name);
  }

  Operation& operation() { return kept_->operation; }
  bool ok() const { return status_.ok(); }

  void Refuse(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  /// What the runtime is to read and, unless it allocates the result, to write.
  void Add(const Numbers& source, const at::Tensor& target) {
    operation().tensors.push_back(
        Argument(source, target.defined() ? target.mutable_data_ptr() : nullptr));
    kept_->tensors.push_back(source.tensor);
    kept_->tensors.push_back(target);
  }

  /// The tensor, of which the runtime allocates what comes of it.
  void AddRows(const at::Tensor& tensor) {
    Result<at::Tensor> source = RowMajor(tensor);
    if (!source.ok()) return Refuse(source.status());
    Add({*source, kRowMajor}, {});
  }

  template <typename T>
  Handle<T> Start(Session& session, Caller caller, typename Handle<T>::Collect collect) {
    if (!status_.ok()) return {std::move(status_), nullptr};
    const std::shared_ptr<const Operation> operation(kept_, &kept_->operation);
    // The runtime copies an operation that it has to name, and then does not hold the tensors.
    const bool is_copied = operation->name.empty();
    return {session.Submit(operation, caller == Caller::kWaits), std::move(collect),
            is_copied ? kept_ : nullptr};
  }

 private:
  /// Shared with the runtime, which holds it until the operation has ended.
  struct Kept {
    Operation operation;
    std::vector<at::Tensor> tensors;
  };

  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
  Status status_;
};

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Options Common(const ReduceOptions& options) { return {options.name, options.process_set}; }

void SetReduction(Call& call, const ReduceOptions& options,
                  const std::vector<at::Tensor>& tensors) {
  Operation& operation = call.operation();
  operation.reduce_op = options.op;
  operation.prescale = options.prescale;
  operation.postscale = options.postscale;
  const bool adds = options.op == ReduceOp::kAverage || options.op == ReduceOp::kSum;
  if (!adds && std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
        return tensor.defined() && tensor.is_complex();
      })) {
    call.Refuse(Invalid("complex tensors can only be added up: use ReduceOp::kAverage or kSum"));
  }
  if (tensors.empty()) call.Refuse(Invalid("a grouped operation needs at least one tensor"));
}

// --- Results in the form of the arguments --------------------------------------------------------

/// Copies to be made once the operation has ended: from memory in one piece to what has holes.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

void AddInPlace(Call& call, const at::Tensor& tensor, Copies& copies) {
  Result<Numbers> source = InMemoryOrder(tensor);
  if (!source.ok()) return call.Refuse(source.status());
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return call.Refuse(Invalid(c10::str("a tensor of shape ", SizesText(tensor),
                                        " whose elements share memory, as expand() makes them, "
                                        "cannot be changed in place: pass tensor.clone()")));
  }
  if (source->tensor.const_data_ptr() != tensor.const_data_ptr()) {
    copies.emplace_back(Like(source->tensor, tensor), tensor);
  }
  call.Add(*source, source->tensor);
}

/// Refuses tensors that share elements: which result these get would be chance. Between the
/// elements of a tensor with holes there may be others', so of such a tensor only the first counts.
void RequireDistinct(Call& call, const std::vector<at::Tensor>& tensors) {
  using Block = std::tuple<const char*, const char*, std::size_t>;  // begin, end, index
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    const auto* const begin = static_cast<const char*>(tensors[i].const_data_ptr());
    const bool is_dense = tensors[i].is_non_overlapping_and_dense();
    blocks.emplace_back(begin, begin + (is_dense ? tensors[i].nbytes() : 1), i);
  }
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (std::get<0>(blocks[i]) >= std::get<1>(blocks[i - 1])) continue;
    const auto [first, second] = std::minmax(std::get<2>(blocks[i - 1]), std::get<2>(blocks[i]));
    return call.Refuse(Invalid(c10::str("tensors ", first, " and ", second,
                                        " of the group share memory, so they cannot both be "
                                        "reduced in place: pass each element once")));
  }
}

/// Adds tensors whose results have their shapes, and returns these results.
std::vector<at::Tensor> AddElementwise(Call& call, const std::vector<at::Tensor>& tensors,
                                       Place place, Copies& copies) {
  const at::NoGradGuard no_grad;
  if (place == Place::kInPlace) {
    for (const at::Tensor& tensor : tensors) AddInPlace(call, tensor, copies);
    if (tensors.size() > 1 && call.ok()) RequireDistinct(call, tensors);
    return tensors;
  }
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    Result<Numbers> source = InMemoryOrder(tensor);
    if (!source.ok()) {
      call.Refuse(source.status());
      return {};
    }
    const at::Tensor target = at::empty_like(source->tensor);
    call.Add(*source, target);
    results.push_back(Like(target, tensor));
  }
  return results;
}

void WriteBack(const Copies& copies) {
  const at::NoGradGuard no_grad;
  for (const auto& [source, tensor] : copies) tensor.copy_(source);
}

using TensorHandle = Handle<at::Tensor>;
using GroupHandle = Handle<std::vector<at::Tensor>>;

TensorHandle StartOne(Call& call, Session& session, const at::Tensor& tensor, Place place,
                      Caller caller) {
  Copies copies;
  const std::vector<at::Tensor> results = AddElementwise(call, {tensor}, place, copies);
  return call.Start<at::Tensor>(session, caller, [results, copies](const Gathered&) {
    WriteBack(copies);
    return results[0];
  });
}

TensorHandle Allreduce(Session& session, const at::Tensor& tensor, const ReduceOptions& options,
                       Place place, Caller caller) {
  Call call(OpKind::kAllreduce, "allreduce", Common(options));
  SetReduction(call, options, {tensor});
  return StartOne(call, session, tensor, place, caller);
}

GroupHandle GroupedAllreduce(Session& session, const std::vector<at::Tensor>& tensors,
                             const ReduceOptions& options, Place place, Caller caller) {
  Call call(OpKind::kAllreduce, "grouped_allreduce", Common(options));
  SetReduction(call, options, tensors);
  Copies copies;
  const std::vector<at::Tensor> results = AddElementwise(call, tensors, place, copies);
  return call.Start<std::vector<at::Tensor>>(session, caller, [results, copies](const Gathered&) {
    WriteBack(copies);
    return results;
  });
}

TensorHandle Broadcast(Session& session, const at::Tensor& tensor, int root, const Options& options,
                       Place place, Caller caller) {
  Call call(OpKind::kBroadcast, "broadcast", options);
  call.operation().root_rank = root;
  return StartOne(call, session, tensor, place, caller);
}

// --- Results for one rank ------------------------------------------------------------------------

/// The ranks of the operation's process set, after checking that the root is one of them.
std::vector<int> RootedRanks(Call& call, Session& session, int root) {
  Result<std::vector<int>> ranks = session.ProcessSetRanks(call.operation().process_set);
  if (!ranks.ok()) {
    call.Refuse(ranks.status());
    return {};
  }
  if (std::find(ranks->begin(), ranks->end(), root) == ranks->end()) {
    call.Refuse(
        Invalid(c10::str("root rank ", root, " is not a rank of the process set, which are ",
                         c10::Join(", ", *ranks))));
  }
  call.operation().root_rank = root;
  return *ranks;
}

TensorHandle Reduce(Session& session, const at::Tensor& tensor, int root,
                    const ReduceOptions& options, Caller caller) {
  Call call(OpKind::kAllreduce, "reduce", Common(options));
  SetReduction(call, options, {tensor});
  RootedRanks(call, session, root);
  Copies none;
  const std::vector<at::Tensor> results = AddElementwise(call, {tensor}, Place::kNew, none);
  const bool is_root = session.world().rank == root;
  return call.Start<at::Tensor>(session, caller, [results, is_root](const Gathered&) {
    return is_root ? results[0] : at::Tensor();
  });
}

TensorHandle Gather(Session& session, const at::Tensor& tensor, int root, const Options& options,
                    Caller caller) {
  Call call(OpKind::kAlltoall, "gather", options);
  const bool has_rows = tensor.defined() && tensor.dim() > 0;
  if (!has_rows) call.Refuse(Invalid("gather needs tensors with a dimension: unsqueeze(0)"));
  for (const int rank : RootedRanks(call, session, root)) {
    call.operation().splits.push_back(rank == root && has_rows ? tensor.size(0) : 0);
  }
  call.AddRows(tensor);
  const bool is_root = session.world().rank == root;
  return call.Start<at::Tensor>(session, caller, [tensor, is_root](const Gathered& gathered) {
    return is_root ? FromGathered(gathered[0], tensor) : at::Tensor();
  });
}

// --- Results that the runtime allocates ----------------------------------------------------------

TensorHandle StartRows(Call& call, Session& session, const at::Tensor& tensor, Caller caller) {
  call.AddRows(tensor);
  return call.Start<at::Tensor>(session, caller, [tensor](const Gathered& gathered) {
    return FromGathered(gathered[0], tensor);
  });
}

GroupHandle StartGroup(Call& call, Session& session, const std::vector<at::Tensor>& tensors,
                       Caller caller) {
  for (const at::Tensor& tensor : tensors) call.AddRows(tensor);
  return call.Start<std::vector<at::Tensor>>(session, caller, [tensors](const Gathered& gathered) {
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      results.push_back(FromGathered(gathered[i], tensors[i]));
    }
    return results;
  });
}

TensorHandle Reducescatter(Session& session, const at::Tensor& tensor, const ReduceOptions& options,
                           Caller caller) {
  Call call(OpKind::kReducescatter, "reducescatter", Common(options));
  SetReduction(call, options, {tensor});
  return StartRows(call, session, tensor, caller);
}

GroupHandle GroupedReducescatter(Session& session, const std::vector<at::Tensor>& tensors,
                                 const ReduceOptions& options, Caller caller) {
  Call call(OpKind::kReducescatter, "grouped_reducescatter", Common(options));
  SetReduction(call, options, tensors);
  return StartGroup(call, session, tensors, caller);
}

TensorHandle Allgather(Session& session, const at::Tensor& tensor, const Options& options,
                       Caller caller) {
  Call call(OpKind::kAllgather, "allgather", options);
  return StartRows(call, session, tensor, caller);
}

GroupHandle GroupedAllgather(Session& session, const std::vector<at::Tensor>& tensors,
                             const Options& options, Caller caller) {
  Call call(OpKind::kAllgather, "grouped_allgather", options);
  if (tensors.empty()) call.Refuse(Invalid("a grouped operation needs at least one tensor"));
  return StartGroup(call, session, tensors, caller);
}

Handle<Exchanged> Alltoall(Session& session, const at::Tensor& tensor,
                           const std::vector<std::int64_t>& splits, const Options& options,
                           Caller caller) {
  Call call(OpKind::kAlltoall, "alltoall", options);
  call.operation().splits = splits;
  call.AddRows(tensor);
  return call.Start<Exchanged>(session, caller, [tensor](const Gathered& gathered) {
    return Exchanged{FromGathered(gathered[0], tensor), gathered[0].first_dims};
  });
}

TensorHandle Scatter(Session& session, const at::Tensor& tensor, int root,
                     const std::vector<std::int64_t>& splits, const Options& options,
                     Caller caller) {
  Call call(OpKind::kAlltoall, "scatter", options);
  const std::vector<int> ranks = RootedRanks(call, session, root);
  if (!tensor.defined() || tensor.dim() == 0) {
    call.Refuse(Invalid("scatter divides a tensor along its first dimension; a scalar has none"));
  } else if (session.world().rank == root) {
    call.operation().splits = splits;
    return StartRows(call, session, tensor, caller);
  } else {
    call.operation().splits.assign(ranks.size(), 0);
    return StartRows(call, session, tensor.narrow(0, 0, 0), caller);
  }
  return call.Start<at::Tensor>(session, caller, nullptr);
}

// --- From one rank to another --------------------------------------------------------------------

/// A broadcast among two ranks, in the process set of this pair and direction.
Call Transfer(const Session& session, RankPair pair, const std::string& name) {
  Call call(OpKind::kBroadcast, "send", {.name = name});
  const int size = session.world().size;
  for (const int rank : {pair.from, pair.to}) {
    if (rank < 0 || rank >= std::min(size, kMostPairRanks)) {
      call.Refuse(Invalid(c10::str(rank, " is no rank: ranks are 0 to ", size - 1)));
    }
  }
  if (pair.from == pair.to) {
    call.Refuse(Invalid(c10::str("rank ", pair.from, " cannot send to itself")));
  }
  if (call.ok()) call.operation().process_set = PairSet(pair);
  call.operation().root_rank = pair.from;
  return call;
}

Handle<void> Send(Session& session, const at::Tensor& tensor, int target, const std::string& name,
                  Caller caller) {
  Call call = Transfer(session, {.from = session.world().rank, .to = target}, name);
  const Result<Numbers> source = InMemoryOrder(tensor);
  if (source.ok()) {
    call.Add(*source, source->tensor);  // nothing is written on the root
  } else {
    call.Refuse(source.status());
  }
  return call.Start<void>(session, caller, nullptr);
}

TensorHandle Receive(Session& session, const at::Tensor& tensor, int source,
                     const std::string& name, Caller caller) {
  Call call = Transfer(session, {.from = source, .to = session.world().rank}, name);
  return StartOne(call, session, tensor, Place::kInPlace, caller);
}

}  // namespace

at::Tensor allreduce(Session& session, const at::Tensor& tensor, const ReduceOptions& options) {
  return Allreduce(session, tensor, options, Place::kNew, Caller::kWaits).get();
}
Handle<at::Tensor> allreduce_async(Session& session, const at::Tensor& tensor,
                                   const ReduceOptions& options) {
  return Allreduce(session, tensor, options, Place::kNew, Caller::kGoesOn);
}
at::Tensor allreduce_(Session& session, const at::Tensor& tensor, const ReduceOptions& options) {
  return Allreduce(session, tensor, options, Place::kInPlace, Caller::kWaits).get();
}
Handle<at::Tensor> allreduce_async_(Session& session, const at::Tensor& tensor,
                                    const ReduceOptions& options) {
  return Allreduce(session, tensor, options, Place::kInPlace, Caller::kGoesOn);
}

std::vector<at::Tensor> grouped_allreduce(Session& session, const std::vector<at::Tensor>& tensors,
                                          const ReduceOptions& options) {
  return GroupedAllreduce(session, tensors, options, Place::kNew, Caller::kWaits).get();
}
GroupHandle grouped_allreduce_async(Session& session, const std::vector<at::Tensor>& tensors,
                                    const ReduceOptions& options) {
  return GroupedAllreduce(session, tensors, options, Place::kNew, Caller::kGoesOn);
}
std::vector<at::Tensor> grouped_allreduce_(Session& session, const std::vector<at::Tensor>& tensors,
                                           const ReduceOptions& options) {
  return GroupedAllreduce(session, tensors, options, Place::kInPlace, Caller::kWaits).get();
}
GroupHandle grouped_allreduce_async_(Session& session, const std::vector<at::Tensor>& tensors,
                                     const ReduceOptions& options) {
  return GroupedAllreduce(session, tensors, options, Place::kInPlace, Caller::kGoesOn);
}

at::Tensor reduce(Session& session, const at::Tensor& tensor, int root,
                  const ReduceOptions& options) {
  return Reduce(session, tensor, root, options, Caller::kWaits).get();
}
Handle<at::Tensor> reduce_async(Session& session, const at::Tensor& tensor, int root,
                                const ReduceOptions& options) {
  return Reduce(session, tensor, root, options, Caller::kGoesOn);
}

at::Tensor reducescatter(Session& session, const at::Tensor& tensor, const ReduceOptions& options) {
  return Reducescatter(session, tensor, options, Caller::kWaits).get();
}
Handle<at::Tensor> reducescatter_async(Session& session, const at::Tensor& tensor,
                                       const ReduceOptions& options) {
  return Reducescatter(session, tensor, options, Caller::kGoesOn);
}
std::vector<at::Tensor> grouped_reducescatter(Session& session,
                                              const std::vector<at::Tensor>& tensors,
                                              const ReduceOptions& options) {
  return GroupedReducescatter(session, tensors, options, Caller::kWaits).get();
}
GroupHandle grouped_reducescatter_async(Session& session, const std::vector<at::Tensor>& tensors,
                                        const ReduceOptions& options) {
  return GroupedReducescatter(session, tensors, options, Caller::kGoesOn);
}

at::Tensor allgather(Session& session, const at::Tensor& tensor, const Options& options) {
  return Allgather(session, tensor, options, Caller::kWaits).get();
}
Handle<at::Tensor> allgather_async(Session& session, const at::Tensor& tensor,
                                   const Options& options) {
  return Allgather(session, tensor, options, Caller::kGoesOn);
}
std::vector<at::Tensor> grouped_allgather(Session& session, const std::vector<at::Tensor>& tensors,
                                          const Options& options) {
  return GroupedAllgather(session, tensors, options, Caller::kWaits).get();
}
GroupHandle grouped_allgather_async(Session& session, const std::vector<at::Tensor>& tensors,
                                    const Options& options) {
  return GroupedAllgather(session, tensors, options, Caller::kGoesOn);
}

at::Tensor gather(Session& session, const at::Tensor& tensor, int root, const Options& options) {
  return Gather(session, tensor, root, options, Caller::kWaits).get();
}
Handle<at::Tensor> gather_async(Session& session, const at::Tensor& tensor, int root,
                                const Options& options) {
  return Gather(session, tensor, root, options, Caller::kGoesOn);
}

at::Tensor broadcast(Session& session, const at::Tensor& tensor, int root, const Options& options) {
  return Broadcast(session, tensor, root, options, Place::kNew, Caller::kWaits).get();
}
Handle<at::Tensor> broadcast_async(Session& session, const at::Tensor& tensor, int root,
                                   const Options& options) {
  return Broadcast(session, tensor, root, options, Place::kNew, Caller::kGoesOn);
}
at::Tensor broadcast_(Session& session, const at::Tensor& tensor, int root,
                      const Options& options) {
  return Broadcast(session, tensor, root, options, Place::kInPlace, Caller::kWaits).get();
}
Handle<at::Tensor> broadcast_async_(Session& session, const at::Tensor& tensor, int root,
                                    const Options& options) {
  return Broadcast(session, tensor, root, options, Place::kInPlace, Caller::kGoesOn);
}

Exchanged alltoall(Session& session, const at::Tensor& tensor,
                   const std::vector<std::int64_t>& splits, const Options& options) {
  return Alltoall(session, tensor, splits, options, Caller::kWaits).get();
}
Handle<Exchanged> alltoall_async(Session& session, const at::Tensor& tensor,
                                 const std::vector<std::int64_t>& splits, const Options& options) {
  return Alltoall(session, tensor, splits, options, Caller::kGoesOn);
}

at::Tensor scatter(Session& session, const at::Tensor& tensor, int root,
                   const std::vector<std::int64_t>& splits, const Options& options) {
  return Scatter(session, tensor, root, splits, options, Caller::kWaits).get();
}
Handle<at::Tensor> scatter_async(Session& session, const at::Tensor& tensor, int root,
                                 const std::vector<std::int64_t>& splits, const Options& options) {
  return Scatter(session, tensor, root, splits, options, Caller::kGoesOn);
}

void send(Session& session, const at::Tensor& tensor, int target, const std::string& name) {
  Send(session, tensor, target, name, Caller::kWaits).get();
}
Handle<void> send_async(Session& session, const at::Tensor& tensor, int target,
                        const std::string& name) {
  return Send(session, tensor, target, name, Caller::kGoesOn);
}
at::Tensor recv(Session& session, const at::Tensor& tensor, int source, const std::string& name) {
  return Receive(session, tensor, source, name, Caller::kWaits).get();
}
Handle<at::Tensor> recv_async(Session& session, const at::Tensor& tensor, int source,
                              const std::string& name) {
  return Receive(session, tensor, source, name, Caller::kGoesOn);
}

void barrier(Session& session, ProcessSetId process_set) {
  Call(OpKind::kBarrier, "barrier", {.process_set = process_set})
      .Start<void>(session, Caller::kWaits, nullptr)
      .get();
}
Handle<void> barrier_async(Session& session, ProcessSetId process_set) {
  return Call(OpKind::kBarrier, "barrier", {.process_set = process_set})
      .Start<void>(session, Caller::kGoesOn, nullptr);
}

}  // namespace hvl::torch
