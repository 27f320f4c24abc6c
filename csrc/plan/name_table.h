// Records found by process set and name, or by a small index that stays valid while the record
// lives. Lookups only: nothing depends on the order of the hash table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "horovodlite/types.h"

namespace hvl::plan {

/// `Record` has a member `set`, which the table fills: the process set of the name.
template <typename Record>
class NameTable {
 public:
  using Index = std::uint32_t;

  std::optional<Index> Find(ProcessSetId set, std::string_view name) const {
    const auto found = by_name_.find(Key{set, name});
    if (found == by_name_.end()) return std::nullopt;
    return found->second;
  }

  /// `name` must be absent from the set.
  Index Add(ProcessSetId set, std::string_view name) {
    Index index = 0;
    if (free_.empty()) {
      index = static_cast<Index>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    slots_[index].record.set = set;
    slots_[index].name = name;
    by_name_.emplace(Key{set, slots_[index].name}, index);
    return index;
  }

  void Remove(Index index) {
    by_name_.erase(Key{slots_[index].record.set, slots_[index].name});
    slots_[index] = Slot{};
    free_.push_back(index);
  }

  Record& operator[](Index index) { return slots_[index].record; }
  const Record& operator[](Index index) const { return slots_[index].record; }
  const std::string& name(Index index) const { return slots_[index].name; }
  std::size_t size() const { return by_name_.size(); }
  /// Indices below this bound have been used.
  Index bound() const { return static_cast<Index>(slots_.size()); }

 private:
  struct Slot {
    Record record;
    std::string name;
  };
  struct Key {
    ProcessSetId set = kWorldSet;
    std::string_view name;

    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      constexpr std::size_t kSpread = 0x9e3779b97f4a7c15U;  // the world's names hash as they are
      return std::hash<std::string_view>()(key.name) ^ (key.set * kSpread);
    }
  };

  std::deque<Slot> slots_;  // a deque: names, which by_name_ points to, do not move
  std::vector<Index> free_;
  std::unordered_map<Key, Index, Hash> by_name_;
};

}  // namespace hvl::plan
