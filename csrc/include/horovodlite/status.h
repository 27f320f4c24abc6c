// Status and Result: how every function of the runtime reports failure. Used by all rooms and by
// C++ users.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace hvl {

// One list of outcomes: enumerator, wire value, name, what it means.
// The Python exception of each code is chosen in python/errors.cc, by code and never by text.
#define HVL_STATUS_CODES(X)                                                             \
  X(kOk, 0, "OK", "success")                                                            \
  X(kInvalidArgument, 1, "InvalidArgument", "this caller's mistake; fix the call")      \
  X(kMismatch, 2, "Mismatch", "ranks disagree; the message names both sides")           \
  X(kUnavailable, 3, "Unavailable", "a peer or a link is gone; start a new session")    \
  X(kTimeout, 4, "Timeout", "a deadline passed; start a new session")                   \
  X(kAborted, 5, "Aborted", "the session is stopping or was ended by an earlier error") \
  X(kNotSupported, 6, "NotSupported", "no backend can do this")                         \
  X(kResourceExhausted, 7, "ResourceExhausted", "a stated limit was reached; raise it") \
  X(kInternal, 8, "Internal", "a bug in horovodlite; please report it")

enum class StatusCode : std::uint8_t {
#define HVL_X(enumerator, value, name, meaning) enumerator = value,
  HVL_STATUS_CODES(HVL_X)
#undef HVL_X
};

/// Name of a code as it appears in messages, e.g. "Mismatch".
std::string_view StatusCodeName(StatusCode code);

/// Success, or a code and a message that says what failed, what was expected and what to do.
class [[nodiscard]] Status {
 public:
  static constexpr int kNoRank = -1;

  Status() = default;
  /// `culprit_rank` is the rank that caused the failure, or kNoRank. `code` must not be kOk.
  Status(StatusCode code, std::string message, int culprit_rank = kNoRank);

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  int culprit_rank() const { return culprit_rank_; }

  /// "Mismatch: tensor 'x' ..." or "OK".
  std::string ToString() const;

  bool operator==(const Status&) const = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  int culprit_rank_ = kNoRank;
  std::string message_;
};

/// A value, or the Status that says why there is none (never an OK Status).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status::Ok() : std::get<1>(state_); }

  /// Requires ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::variant<T, Status> state_;
};

// Returns early from a function that itself returns Status or Result.
#define HVL_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                   \
    if (::hvl::Status hvl_status_ = (expression); !hvl_status_.ok()) return hvl_status_; \
  } while (false)

#define HVL_CONCAT_INNER(a, b) a##b
#define HVL_CONCAT(a, b) HVL_CONCAT_INNER(a, b)
// HVL_ASSIGN_OR_RETURN(auto socket, Connect(address));
#define HVL_ASSIGN_OR_RETURN(declaration, expression)                                             \
  auto HVL_CONCAT(hvl_result_, __LINE__) = (expression);                                          \
  if (!HVL_CONCAT(hvl_result_, __LINE__).ok()) return HVL_CONCAT(hvl_result_, __LINE__).status(); \
  declaration = std::move(HVL_CONCAT(hvl_result_, __LINE__)).value()

}  // namespace hvl
