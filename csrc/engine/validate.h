// From what a caller submits to what is announced; refuses what one rank can see to be wrong,
// before anything is sent. Used by Submit; what ranks must agree on is checked by `plan`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/wire/messages.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::engine {

/// InvalidArgument that names the operation, what is wrong and the cure; or OK. What the limits of
/// messages are is left to wire::CheckSignature.
Status CheckOperation(const Operation& operation, int rank, int size);

/// What ranks must agree on. Fields that mean nothing to the kind have their default, so that ranks
/// cannot differ in them.
wire::Signature SignatureOf(const Operation& operation);
/// Of each tensor of an allgather; empty for other kinds.
std::vector<std::int64_t> FirstDimensions(const Operation& operation);

/// Bytes of a tensor that has passed CheckOperation.
std::size_t TensorBytes(const TensorArg& tensor);

}  // namespace hvl::engine
