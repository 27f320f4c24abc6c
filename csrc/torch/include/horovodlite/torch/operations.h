// Operations on tensors of all ranks. Names, meanings and results are those of the Python package
// (docs/api.md); autograd knows nothing of them.
//
// What holds for all of them:
// - Each has a form that blocks and throws hvl::Error, and one that ends in _async, returns a
//   handle at once and throws nothing but what LibTorch throws. `allreduce_async(...).wait()` is a
//   Status.
// - All ranks of the process set must call it, with tensors of the same dtype and, but for the
//   first dimension where that is said, shape. Any thread may.
// - Tensors are in host memory and dense: bool, uint8, int8 to int64, float16, bfloat16, float32,
//   float64, complex64 and complex128 (reductions of complex ones: sum and average). They need not
//   be contiguous. Others are InvalidArgument.
// - The tensor that is passed must not change until the operation has ended.
// - Results are new, without history, of the dtype of the argument, and contiguous, unless it is
//   said otherwise. Forms that end in _ (or _async_) overwrite their argument instead, unseen by
//   autograd. A tensor that is not contiguous is written by wait(), any other one at some time
//   before. One with overlapping elements, as expand() makes it, is InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "horovodlite/session.h"
#include "horovodlite/torch/handle.h"

namespace hvl::torch {

/// Of operations that do not reduce.
struct Options {
  /// The same on all ranks; operations with one name belong together. Without names they are paired
  /// by the order in which ranks start them, per kind.
  std::string name = {};
  /// Whose ranks take part (Session::AddProcessSet): only they call it.
  ProcessSetId process_set = kWorldSet;
};

/// Of reductions.
struct ReduceOptions {
  std::string name = {};  ///< as in Options
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0;   ///< every rank's tensor is multiplied by it first
  double postscale = 1.0;  ///< the result is multiplied by it last
  ProcessSetId process_set = kWorldSet;
};

/// The reduction of all ranks' tensors, on every rank. Shape: that of `tensor`.
at::Tensor allreduce(Session& session, const at::Tensor& tensor, const ReduceOptions& options = {});
Handle<at::Tensor> allreduce_async(Session& session, const at::Tensor& tensor,
                                   const ReduceOptions& options = {});
at::Tensor allreduce_(Session& session, const at::Tensor& tensor,
                      const ReduceOptions& options = {});
Handle<at::Tensor> allreduce_async_(Session& session, const at::Tensor& tensor,
                                    const ReduceOptions& options = {});

/// The same for several tensors, which are agreed on and started all or nothing. At least one; they
/// may differ in dtype and shape. In place they must not share memory.
std::vector<at::Tensor> grouped_allreduce(Session& session, const std::vector<at::Tensor>& tensors,
                                          const ReduceOptions& options = {});
Handle<std::vector<at::Tensor>> grouped_allreduce_async(Session& session,
                                                        const std::vector<at::Tensor>& tensors,
                                                        const ReduceOptions& options = {});
std::vector<at::Tensor> grouped_allreduce_(Session& session, const std::vector<at::Tensor>& tensors,
                                           const ReduceOptions& options = {});
Handle<std::vector<at::Tensor>> grouped_allreduce_async_(Session& session,
                                                         const std::vector<at::Tensor>& tensors,
                                                         const ReduceOptions& options = {});

/// The reduction on the rank `root` (of the world), and an undefined tensor elsewhere. It costs
/// what an allreduce costs.
at::Tensor reduce(Session& session, const at::Tensor& tensor, int root,
                  const ReduceOptions& options = {});
Handle<at::Tensor> reduce_async(Session& session, const at::Tensor& tensor, int root,
                                const ReduceOptions& options = {});

/// This rank's rows of the reduction. Shape: as `tensor`, with about first dimension / ranks rows;
/// the first ranks have one more when that leaves a remainder. Not a scalar; no Adasum.
at::Tensor reducescatter(Session& session, const at::Tensor& tensor,
                         const ReduceOptions& options = {});
Handle<at::Tensor> reducescatter_async(Session& session, const at::Tensor& tensor,
                                       const ReduceOptions& options = {});
std::vector<at::Tensor> grouped_reducescatter(Session& session,
                                              const std::vector<at::Tensor>& tensors,
                                              const ReduceOptions& options = {});
Handle<std::vector<at::Tensor>> grouped_reducescatter_async(Session& session,
                                                            const std::vector<at::Tensor>& tensors,
                                                            const ReduceOptions& options = {});

/// All ranks' tensors, joined along the first dimension in the order of ranks. First dimensions may
/// differ and be 0. Not a scalar.
at::Tensor allgather(Session& session, const at::Tensor& tensor, const Options& options = {});
Handle<at::Tensor> allgather_async(Session& session, const at::Tensor& tensor,
                                   const Options& options = {});
std::vector<at::Tensor> grouped_allgather(Session& session, const std::vector<at::Tensor>& tensors,
                                          const Options& options = {});
Handle<std::vector<at::Tensor>> grouped_allgather_async(Session& session,
                                                        const std::vector<at::Tensor>& tensors,
                                                        const Options& options = {});

/// As allgather, on the rank `root` (of the world) only; an undefined tensor elsewhere.
at::Tensor gather(Session& session, const at::Tensor& tensor, int root,
                  const Options& options = {});
Handle<at::Tensor> gather_async(Session& session, const at::Tensor& tensor, int root,
                                const Options& options = {});

/// The tensor of the rank `root` (of the world). Elsewhere only its dtype and shape matter.
at::Tensor broadcast(Session& session, const at::Tensor& tensor, int root,
                     const Options& options = {});
Handle<at::Tensor> broadcast_async(Session& session, const at::Tensor& tensor, int root,
                                   const Options& options = {});
at::Tensor broadcast_(Session& session, const at::Tensor& tensor, int root,
                      const Options& options = {});
Handle<at::Tensor> broadcast_async_(Session& session, const at::Tensor& tensor, int root,
                                    const Options& options = {});

/// What an alltoall brings.
struct Exchanged {
  at::Tensor tensor;                        ///< rows from all ranks, in the order of ranks
  std::vector<std::int64_t> received_rows;  ///< how many came from each rank of the process set
};

/// Sends rows of `tensor` to every rank: `splits` says how many to each, in the order of ranks;
/// empty = equally many. Rows beyond the sum of `splits` go nowhere. First dimensions may differ.
Exchanged alltoall(Session& session, const at::Tensor& tensor,
                   const std::vector<std::int64_t>& splits = {}, const Options& options = {});
Handle<Exchanged> alltoall_async(Session& session, const at::Tensor& tensor,
                                 const std::vector<std::int64_t>& splits = {},
                                 const Options& options = {});

/// This rank's rows of the root's tensor, divided by `splits` as in alltoall. On other ranks than
/// `root` only dtype and the dimensions after the first of `tensor` matter, and nothing of
/// `splits`.
at::Tensor scatter(Session& session, const at::Tensor& tensor, int root,
                   const std::vector<std::int64_t>& splits = {}, const Options& options = {});
Handle<at::Tensor> scatter_async(Session& session, const at::Tensor& tensor, int root,
                                 const std::vector<std::int64_t>& splits = {},
                                 const Options& options = {});

/// Sends `tensor` to another rank, which calls recv with a tensor of the same dtype and shape. Only
/// the two take part, so no process set. Without names, what one rank sends to another is received
/// in the order in which it was sent. Ends when it has been received.
void send(Session& session, const at::Tensor& tensor, int target, const std::string& name = {});
Handle<void> send_async(Session& session, const at::Tensor& tensor, int target,
                        const std::string& name = {});
/// Overwrites `tensor` with what the rank `source` sends, and returns it.
at::Tensor recv(Session& session, const at::Tensor& tensor, int source,
                const std::string& name = {});
Handle<at::Tensor> recv_async(Session& session, const at::Tensor& tensor, int source,
                              const std::string& name = {});

/// Ends when every rank of the process set has called it. What is in flight goes on.
void barrier(Session& session, ProcessSetId process_set = kWorldSet);
Handle<void> barrier_async(Session& session, ProcessSetId process_set = kWorldSet);

}  // namespace hvl::torch
