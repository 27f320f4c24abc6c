// The only place where a Status becomes a Python exception: by its code, never by its text.
#pragma once

#include "horovodlite/status.h"

namespace hvl::python {

/// Raises the exception that belongs to `status`, which must not be OK. Needs the GIL.
[[noreturn]] void Throw(const Status& status);

/// Needs the GIL.
inline void ThrowIfError(const Status& status) {
  if (!status.ok()) Throw(status);
}

/// The value, or the exception. Needs the GIL.
template <typename T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Throw(result.status());
  return std::move(result).value();
}

}  // namespace hvl::python
