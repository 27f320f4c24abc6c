// Where the ranks go: host lists and host files, and the numbers of each rank. Pure: text in, plan
// out.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"

namespace hvl::launcher {

/// One entry of -H or of a host file.
struct HostSlots {
  std::string host;
  std::optional<int> slots;  ///< how many ranks it takes; nothing = not said
  std::string user = "";     ///< who logs in there; "" = not said

  bool operator==(const HostSlots&) const = default;
};

/// Where one rank stands.
struct RankPlace {
  std::string host;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of its host
  int cross_rank = 0, cross_size = 1;  ///< among the ranks with its local rank on all hosts

  bool operator==(const RankPlace&) const = default;
};

/// The ranks of one host, which are numbered one after the other.
struct HostRanks {
  std::string host;
  std::string user;
  bool is_this_machine = false;
  int first_rank = 0;
  int rank_count = 0;

  bool operator==(const HostRanks&) const = default;
};

/// "localhost:2,127.0.0.1:3,[::1]:1,me@node[01-04]:8,other"; errors quote the entry.
Result<std::vector<HostSlots>> ParseHosts(std::string_view text);

/// Lines "[user@]host slots=N [max_slots=N]", "host:N" or "host"; # starts a comment. Without
/// slots=, max_slots= counts; it may not be less than slots=. The host may be a range, or an IPv6
/// address in brackets (with slots= also without). Errors begin with
/// "<name>:<line>:".
Result<std::vector<HostSlots>> ParseHostfile(std::string_view content, std::string_view name);

/// Fills the hosts in order, slot by slot; an entry that repeats a host adds to its slots. A lone
/// host without a count takes all ranks.
Result<std::vector<RankPlace>> PlaceRanks(const std::vector<HostSlots>& hosts, int num_proc);

/// "localhost", a loopback address, or one of `own_names`.
bool IsThisMachine(const std::string& host, std::span<const std::string> own_names);

/// The hosts of these ranks, in order; `hosts` say who logs in.
std::vector<HostRanks> HostsOf(const std::vector<RankPlace>& places,
                               const std::vector<HostSlots>& hosts,
                               std::span<const std::string> own_names);

}  // namespace hvl::launcher
