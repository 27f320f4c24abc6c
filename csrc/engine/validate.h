// From what a caller submits to what is announced; refuses what one rank can see to be wrong,
// before anything is sent. Used by Submit; what ranks must agree on is checked by `plan`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/engine/process_sets.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::engine {

/// InvalidArgument that names the operation, what is wrong and the cure; or OK. `set` is the
/// operation's, `rank` this rank in the world. What the limits of messages are is left to
/// wire::CheckSignature.
Status CheckOperation(const Operation& operation, const ProcessSet& set, int rank);

/// True when CheckOperation has nothing to say of the operation's memory. For a shape that would
/// not pass it the answer may be either.
bool HasSoundMemory(const Operation& operation, int rank);
/// This is the signature of the operation, and it has no first dimensions besides. The names are
/// not compared.
bool IsLike(const Operation& operation, const wire::Signature& signature);

/// What ranks must agree on. Fields that mean nothing to the kind have their default, so that ranks
/// cannot differ in them.
wire::Signature SignatureOf(const Operation& operation);
/// Of each tensor of an allgather, for each member from the tensor of an alltoall; empty for other
/// kinds. Requires a checked operation.
std::vector<std::int64_t> FirstDimensions(const Operation& operation, const ProcessSet& set);

/// The runtime allocates the result.
bool AllocatesResult(OpKind kind);
/// Bytes of a tensor that has passed CheckOperation.
std::size_t TensorBytes(const TensorArg& tensor);
/// Bytes of all that has the same first index. Requires a dimension.
std::size_t RowBytes(const TensorArg& tensor);
/// Rows of the part that a reducescatter of `rows` gives to `position` of `size`: as equal as can
/// be, the first ones get one more.
std::int64_t ScatteredRows(std::int64_t rows, int position, int size);

}  // namespace hvl::engine
