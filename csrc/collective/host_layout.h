// Which ranks of a group share a host, and how the ranks of several hosts line up. Pure arithmetic.
#pragma once

#include <span>
#include <vector>

namespace hvl::collective {

/// A host has a number, counted in this group, and ranks that follow each other. A *column* has one
/// rank on every host; there are as many columns as the host with the fewest ranks has. On hosts
/// with more, the ranks that belong to no column stand *behind* the last one before them that does.
class HostLayout {
 public:
  /// `hosts` of the ranks of the group, ascending (net::Mesh::hosts(), or some of them).
  explicit HostLayout(std::span<const int> hosts);

  int ranks() const { return ends_.back(); }
  int hosts() const { return static_cast<int>(ends_.size()); }
  /// Where the ranks of each host end: groups in which to sum (tensor::Reduce).
  const std::vector<int>& ends() const { return ends_; }
  int First(int host) const { return host == 0 ? 0 : End(host - 1); }
  int End(int host) const { return ends_[static_cast<std::size_t>(host)]; }
  int RanksOn(int host) const { return End(host) - First(host); }
  int HostOf(int rank) const;

  int columns() const { return columns_; }
  /// The rank of `column` on `host`. The ranks up to that of the next column stand behind it; for
  /// column columns() this is the end of the host.
  int Member(int column, int host) const { return First(host) + RanksOn(host) * column / columns_; }
  /// Its column, or -1.
  int ColumnOf(int rank) const;
  /// One rank per host.
  std::vector<int> Column(int column) const;

 private:
  std::vector<int> ends_;
  int columns_;
};

}  // namespace hvl::collective
