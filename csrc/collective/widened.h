// Reductions whose partial results say more than the element type can, so that they must travel
// in a wider one: averages of integers, 16-bit floats, scale factors before the sum. For the data
// planes in which partial results travel.
#pragma once

#include <cstdint>
#include <span>

#include "csrc/collective/backend.h"
#include "csrc/tensor/reduce.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// The groups of tensor::Reduce, of which there are as many as the partial results that are rounded
/// to the element type: one of all ranks, or one of each, whose partial result is its scaled input.
enum class SumGroups : std::uint8_t { kOne, kEachRank };

/// `backend`'s allreduce of the same elements, widened by each rank: twice the bytes (four times
/// for 8-bit integers of more than 128 ranks). The bits are those of one reduction of all inputs
/// in the order in which `backend` combines float32 and float64, over `groups`. In blocks, so that
/// it needs no more than kWideBlockBytes beside the tensors; ResourceExhausted without them.
/// Requires CheckElementwise(spec).ok().
Status AllreduceWidened(Backend& backend, std::span<const ReducePiece> pieces,
                        const tensor::ReduceSpec& spec, SumGroups groups = SumGroups::kOne);

/// The same of a reduce-scatter, as rank `rank` of `ranks` takes part.
Status ReducescatterWidened(Backend& backend, int rank, int ranks,
                            std::span<const ScatterPiece> pieces, const tensor::ReduceSpec& spec,
                            SumGroups groups = SumGroups::kOne);

inline constexpr std::size_t kWideBlockBytes = std::size_t{8} << 20;

}  // namespace hvl::collective
