// What ranks must agree on for an operation, as all who deal with the operation share it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/wire/messages.h"

namespace hvl::plan {

/// An immutable signature. An operation that comes again brings the one that is known of it, so
/// nothing is copied, and that it is equal is seen by its address. Copies may be used by different
/// threads.
class SharedSignature {
 public:
  /// Empty: holds no signature.
  SharedSignature() = default;
  SharedSignature(wire::Signature signature)  // NOLINT: implicit, as its value is all it has
      : shared_(std::make_shared<const Shared>(std::move(signature))) {}

  bool empty() const { return shared_ == nullptr; }
  /// Whether it is a copy of the other one: equal, and seen at once.
  bool IsCopyOf(const SharedSignature& other) const { return shared_ == other.shared_; }
  // Require that it is not empty.
  const wire::Signature& operator*() const { return shared_->signature; }
  const wire::Signature* operator->() const { return &shared_->signature; }
  /// Where somebody has found what belongs to it the last time. That may be out of date.
  std::uint32_t hint() const { return shared_->hint.load(std::memory_order_relaxed); }
  void SetHint(std::uint32_t hint) const { shared_->hint.store(hint, std::memory_order_relaxed); }

  friend bool operator==(const SharedSignature& a, const SharedSignature& b) {
    return a.IsCopyOf(b) || (!a.empty() && !b.empty() && *a == *b);
  }

 private:
  struct Shared {
    explicit Shared(wire::Signature value) : signature(std::move(value)) {}

    const wire::Signature signature;
    mutable std::atomic<std::uint32_t> hint{0};
  };
  std::shared_ptr<const Shared> shared_;  // by its copies
};

}  // namespace hvl::plan
