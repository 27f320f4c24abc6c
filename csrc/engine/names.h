// The names that this rank knows: what is in flight, and what may come again.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "csrc/plan/shared_signature.h"
#include "horovodlite/types.h"

namespace hvl::engine {

struct NameView {
  ProcessSetId set = kWorldSet;
  std::string_view text;

  bool operator==(const NameView&) const = default;
};

struct Name {
  ProcessSetId set = kWorldSet;
  std::string text;

  operator NameView() const { return {set, text}; }  // NOLINT: implicit, as std::string's
};

/// What is known of a name.
struct KnownName {
  bool in_flight = false;
  /// Of the last operation of this name that was admitted; it has passed all checks. Empty when the
  /// name will not come again: then the entry goes with the operation in flight.
  plan::SharedSignature signature;
};

struct NameHash {
  using is_transparent = void;
  std::size_t operator()(NameView name) const {
    return std::hash<std::string_view>()(name.text) + name.set;
  }
};
struct NameEqual {
  using is_transparent = void;
  bool operator()(NameView a, NameView b) const { return a == b; }
};

/// Entries stay where they are while they live. To find one takes a view of a name.
using KnownNames = std::unordered_map<Name, KnownName, NameHash, NameEqual>;

}  // namespace hvl::engine
