// What ranks must agree on for an operation, as all who deal with the operation share it.
#pragma once

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
      : signature_(std::make_shared<const wire::Signature>(std::move(signature))) {}

  bool empty() const { return signature_ == nullptr; }
  // Require that it is not empty.
  const wire::Signature& operator*() const { return *signature_; }
  const wire::Signature* operator->() const { return signature_.get(); }

  friend bool operator==(const SharedSignature& a, const SharedSignature& b) {
    if (a.signature_ == b.signature_) return true;
    return !a.empty() && !b.empty() && *a == *b;
  }

 private:
  std::shared_ptr<const wire::Signature> signature_;  // shared by its copies
};

}  // namespace hvl::plan
