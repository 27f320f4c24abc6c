// An operation on tensors that has been started, and what it will make.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "horovodlite/error.h"
#include "horovodlite/session.h"

namespace hvl::torch {

/// A started operation, as the functions that end in _async return it. `T` is what it makes; void
/// when that is nothing. Copies refer to the same operation.
///
/// Whatever was wrong, also with the arguments, is said by wait() and get(), never by the function
/// that starts. Dropping a handle cancels nothing. The runtime keeps the tensors of an operation
/// that has a name until it has ended; of one without a name, the last copy of the handle waits.
///
/// done() may be called by any thread; wait() and get() by one at a time.
template <typename T>
class Handle {
  using Value = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

 public:
  /// Makes the value of what the runtime has allocated (hvl::Handle::gathered).
  using Collect = std::function<Value(const std::vector<GatheredTensor>&)>;

  /// `memory`: what the operation works on, unless the runtime keeps it.
  Handle(Result<hvl::Handle> started, Collect collect, std::shared_ptr<const void> memory = {})
      : state_(std::make_shared<State>(std::move(started), std::move(collect), std::move(memory))) {
  }

  /// True once it has ended, well or badly. Never blocks.
  bool done() const { return !state_->started.ok() || state_->started->done(); }

  /// Blocks until it has ended; says how. The thread may do the runtime's work meanwhile.
  Status wait() {
    if (!state_->started.ok()) return state_->started.status();
    return Finish(state_->started->Wait());
  }

  /// As wait(), but returns Timeout after `timeout`; the operation goes on.
  Status wait_for(std::chrono::nanoseconds timeout) {
    if (!state_->started.ok()) return state_->started.status();
    return Finish(state_->started->WaitFor(timeout));
  }

  /// Waits, and returns the result: the same tensors each time. Throws hvl::Error.
  T get() {
    ThrowIfError(wait());
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }

 private:
  struct State {
    State(Result<hvl::Handle> of, Collect by, std::shared_ptr<const void> on)
        : started(std::move(of)), collect(std::move(by)), memory(std::move(on)) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (memory != nullptr && started.ok()) (void)started->Wait();  // nobody asks how it ended
    }

    Result<hvl::Handle> started;
    Collect collect;  ///< empty once the value is there
    std::shared_ptr<const void> memory;
    std::optional<Value> value;
  };

  Status Finish(Status outcome) {
    if (outcome.ok() && state_->collect) {
      state_->value = state_->collect(state_->started->gathered());
      state_->collect = nullptr;  // and the tensors that it holds
    }
    return outcome;
  }

  std::shared_ptr<State> state_;  ///< shared by the copies
};

}  // namespace hvl::torch
