// Our element types and reductions as those of MPI.
#pragma once

#include "csrc/plugins/mpi/mpi_api.h"
#include "csrc/tensor/reduce.h"
#include "horovodlite/types.h"

namespace hvl::mpi {

struct Reduction {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
};

/// Whether MPI may add partial sums of the element type: not where a later step would see more than
/// the type holds, which is so for an average of integers, or with a factor before the sum.
bool PartialSumsFit(const tensor::ReduceSpec& spec);

/// What MPI is asked for. MPI's own operation where that means the same, because networks can do it
/// themselves; else one of ours. Average is a sum. Requires PartialSumsFit, and MPI to be
/// initialised; from one thread at a time.
Reduction ReductionFor(const tensor::ReduceSpec& spec);

}  // namespace hvl::mpi
