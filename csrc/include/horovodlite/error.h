// For programs that prefer exceptions: the way from a Status to hvl::Error and back. The runtime
// itself throws nothing.
#pragma once

#include <stdexcept>
#include <utility>

#include "horovodlite/status.h"

namespace hvl {

/// A Status that is not OK, as an exception; what() is its code and message.
class Error : public std::runtime_error {
 public:
  /// `status` must not be OK.
  explicit Error(Status status)
      : std::runtime_error(status.ToString()), status_(std::move(status)) {}

  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

/// Throws hvl::Error unless the status is OK.
inline void ThrowIfError(Status status) {
  if (!status.ok()) throw Error(std::move(status));
}

/// The value; throws hvl::Error when there is none: `auto session =
/// hvl::ValueOrThrow(hvl::Session::Create());`
template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

/// Calls `function` and returns what went wrong with the runtime, or OK. Other exceptions pass:
/// `hvl::Status status = hvl::Attempt([&] { optimizer.step(); });`
template <typename Function>
Status Attempt(Function&& function) {
  try {
    std::forward<Function>(function)();
  } catch (const Error& error) {
    return error.status();
  }
  return Status::Ok();
}

}  // namespace hvl
