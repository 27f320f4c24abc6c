// Adasum: a sum of gradients that adds what is orthogonal and averages what is parallel.
#pragma once

#include <span>

#include "csrc/collective/backend.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::collective {

/// Adasum over the ranks of `backend`, of which this is `rank` of `ranks`, for each piece as a
/// tensor of its own: fusion does not change a bit, unless HVL_REPRODUCIBLE is off, when the order
/// in which a `backend` sums the products of many pieces may depend on their number. Any number of
/// ranks; the result is the same on all. Inputs are multiplied by `prescale`, results by
/// `postscale`. Computes float16 and bfloat16 in float32. Blocks as the operations of `backend`,
/// whose errors it returns; InvalidArgument where tensor::CheckReduction refuses. Needs memory for
/// one to three copies of the inputs.
Status AdasumAllreduce(Backend& backend, int rank, int ranks, std::span<const ReducePiece> pieces,
                       DType dtype, double prescale, double postscale);

}  // namespace hvl::collective
