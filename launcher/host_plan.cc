#include "launcher/host_plan.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/host_range.h"

namespace hvl::launcher {
namespace {

constexpr int kMaxSlots = 1048576;  // as many as there may be ranks

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\f\v";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<int> ParseCount(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 1 || value > kMaxSlots) return std::nullopt;
  return value;
}

/// More than the limit makes no difference.
int AddSlots(int a, int b) { return std::min(a + b, kMaxSlots); }

/// None begins with a dash: programs would take it for an option.
bool IsHostName(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

bool IsUnscopedIpv6(std::string_view text) {
  return text.find(':') != std::string_view::npos &&
         text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

/// With or without the interface that a link-local address belongs to: fe80::1%eth0.
bool IsIpv6(std::string_view text) {
  const std::size_t percent = text.find('%');
  return IsUnscopedIpv6(text.substr(0, percent)) &&
         (percent == std::string_view::npos || IsHostName(text.substr(percent + 1)));
}

/// What is an address, and not a name and a count, though it has no brackets; "" if it is none.
/// After an interface's name a colon begins the count.
std::string_view BareIpv6(std::string_view text) {
  const std::size_t percent = text.find('%');
  const std::string_view address = text.substr(0, percent);
  if (!IsUnscopedIpv6(address) || address.find(':') == address.rfind(':')) return {};
  return percent == std::string_view::npos ? text : text.substr(0, text.find(':', percent));
}

/// What one entry names: several hosts when it has a range.
struct Entry {
  std::vector<std::string> hosts;
  std::optional<int> slots;
  std::string user;
};

Result<std::vector<std::string>> ParseNames(std::string_view pattern, std::string_view entry) {
  HVL_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandHostRange(pattern));
  if (std::all_of(names.begin(), names.end(), IsHostName)) return names;
  return Invalid(Format("'{}' is not a host: expected name:slots, e.g. localhost:2", entry));
}

/// "host", "host:N" or "[v6]:N", with or without "user@" in front; the host may have ranges.
Result<Entry> ParseEntry(std::string_view entry) {
  std::string user;
  if (const std::size_t at = entry.find('@'); at != std::string_view::npos) {
    user = entry.substr(0, at);
    if (!IsHostName(user)) {
      return Invalid(Format("'{}' is not a host: expected user@name:slots", entry));
    }
    entry.remove_prefix(at + 1);
  }
  std::string_view host = entry;
  std::string_view count;
  bool has_count = false;
  if (entry.starts_with('[')) {
    const std::size_t close = entry.find(']');
    const std::string_view rest = close == std::string_view::npos ? "?" : entry.substr(close + 1);
    host = entry.substr(1, close == std::string_view::npos ? 0 : close - 1);
    has_count = rest.starts_with(':');
    if (!IsIpv6(host) || (!rest.empty() && !has_count)) {
      return Invalid(Format("'{}' is not an address: expected [IPv6]:slots", entry));
    }
    if (has_count) count = rest.substr(1);
  } else if (const std::size_t colon = entry.find(':'); colon != std::string_view::npos) {
    if (const std::string_view bare = BareIpv6(entry); !bare.empty()) {
      return Invalid(Format("'{}' is ambiguous: write an IPv6 address as [{}]:slots", entry, bare));
    }
    host = entry.substr(0, colon);
    count = entry.substr(colon + 1);
    has_count = true;
  }
  Entry parsed{.hosts = {std::string(host)}, .slots = std::nullopt, .user = std::move(user)};
  if (!entry.starts_with('[')) {
    HVL_ASSIGN_OR_RETURN(parsed.hosts, ParseNames(host, entry));
  }
  if (!has_count) return parsed;
  parsed.slots = ParseCount(count);
  if (!parsed.slots) {
    return Invalid(Format("'{}': the number of slots must be an integer from 1 to {}, not '{}'",
                          entry, kMaxSlots, count));
  }
  return parsed;
}

void Add(const Entry& entry, std::vector<HostSlots>* hosts) {
  for (const std::string& host : entry.hosts) hosts->push_back({host, entry.slots, entry.user});
}

/// Where the entry that begins at `at` ends: a comma between brackets belongs to the entry.
std::size_t EntryEnd(std::string_view text, std::size_t at) {
  bool in_brackets = false;
  for (; at < text.size(); ++at) {
    if (text[at] == '[') in_brackets = true;
    if (text[at] == ']') in_brackets = false;
    if (text[at] == ',' && !in_brackets) break;
  }
  return at;
}

/// The words of a host file's line, with the blanks around '=' removed.
std::vector<std::string> Words(std::string_view line) {
  std::vector<std::string> words;
  bool glue = false;  // the next word belongs to the previous one
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(" \t", at);
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    if (!words.empty() && (glue || word.starts_with('='))) {
      words.back() += word;
    } else {
      words.emplace_back(word);
    }
    glue = word.ends_with('=');
    at = end;
  }
  return words;
}

/// Adds the hosts of a line that is not empty.
Status ParseLine(std::string_view line, std::vector<HostSlots>* hosts) {
  const std::vector<std::string> words = Words(line);
  Entry entry;
  if (words.size() > 1 && BareIpv6(words.front()) == words.front()) {
    entry.hosts = {words.front()};  // with slots=N behind it, no number can hide in the address
  } else {
    HVL_ASSIGN_OR_RETURN(entry, ParseEntry(words.front()));
  }
  std::optional<int> most;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const std::string_view key = word.substr(0, word.find('='));
    if (key.size() == word.size() || (key != "slots" && key != "max_slots" && key != "max-slots")) {
      return Invalid(Format("'{}' is not understood: expected slots=N after the host", word));
    }
    const std::optional<int> count = ParseCount(word.substr(key.size() + 1));
    if (!count) {
      return Invalid(
          Format("'{}': the number of slots must be an integer from 1 to {}", word, kMaxSlots));
    }
    if (key != "slots") {
      most = count;
      continue;
    }
    if (entry.slots) {
      return Invalid(Format("the slots of host {} are given twice", entry.hosts.front()));
    }
    entry.slots = count;
  }
  if (most && entry.slots.value_or(0) > *most) {
    return Invalid(
        Format("host {} has slots={} and max_slots={}", entry.hosts.front(), *entry.slots, *most));
  }
  if (!entry.slots) entry.slots = most;
  Add(entry, hosts);
  return Status::Ok();
}

/// Entries of the same host become one, at the place of the first.
std::vector<HostSlots> Merge(const std::vector<HostSlots>& hosts) {
  std::vector<HostSlots> merged;
  std::map<std::string_view, std::size_t> place;
  for (const HostSlots& entry : hosts) {
    const auto [known, is_new] = place.emplace(entry.host, merged.size());
    if (is_new) {
      merged.push_back(entry);
      continue;
    }
    std::optional<int>& slots = merged[known->second].slots;
    slots = slots && entry.slots ? std::optional(AddSlots(*slots, *entry.slots)) : std::nullopt;
  }
  return merged;
}

Status RequireCounts(const std::vector<HostSlots>& hosts) {
  if (hosts.size() == 1) return Status::Ok();
  for (const HostSlots& entry : hosts) {
    if (!entry.slots) {
      return Invalid(
          Format("host {} has no number of slots; with several hosts each needs one, "
                 "e.g. {}:2",
                 entry.host, entry.host));
    }
  }
  return Status::Ok();
}

void FillCrossRanks(std::vector<RankPlace>* places) {
  std::map<int, int> hosts_with_local_rank;
  for (RankPlace& place : *places) place.cross_rank = hosts_with_local_rank[place.local_rank]++;
  for (RankPlace& place : *places) place.cross_size = hosts_with_local_rank[place.local_rank];
}

}  // namespace

Result<std::vector<HostSlots>> ParseHosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = EntryEnd(text, at);
    const std::string_view entry = Trim(text.substr(at, end - at));
    if (entry.empty()) {
      return Invalid(Format("'{}' has an empty entry: expected host:slots,host:slots", text));
    }
    HVL_ASSIGN_OR_RETURN(const Entry parsed, ParseEntry(entry));
    Add(parsed, &hosts);
    at = end + 1;
  }
  return hosts;
}

Result<std::vector<HostSlots>> ParseHostfile(std::string_view content, std::string_view name) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  std::vector<HostSlots> hosts;
  int line_number = 0;
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    const std::string_view line = content.substr(at, end - at);
    at = end + 1;
    ++line_number;
    const std::string_view text = Trim(line.substr(0, line.find('#')));
    if (text.empty()) continue;
    if (const Status status = ParseLine(text, &hosts); !status.ok()) {
      return Invalid(Format("{}:{}: {}", name, line_number, status.message()));
    }
  }
  if (hosts.empty()) {
    return Invalid(Format("{}: no host in it; expected lines like 'localhost slots=2'", name));
  }
  return hosts;
}

Result<std::vector<RankPlace>> PlaceRanks(const std::vector<HostSlots>& hosts, int num_proc) {
  const std::vector<HostSlots> merged = Merge(hosts);
  HVL_RETURN_IF_ERROR(RequireCounts(merged));
  std::vector<RankPlace> places;
  int offered = 0;
  for (const HostSlots& entry : merged) {
    const int slots = entry.slots.value_or(num_proc);
    offered = AddSlots(offered, slots);
    const int first = static_cast<int>(places.size());
    const int taken = std::min(slots, num_proc - first);
    for (int local = 0; local < taken; ++local) {
      places.push_back({.host = entry.host,
                        .rank = first + local,
                        .size = num_proc,
                        .local_rank = local,
                        .local_size = taken});
    }
  }
  if (offered < num_proc) {
    return Invalid(
        Format("-np {} needs {} slots, but the hosts offer {}; use -np {} or give a "
               "host more slots, e.g. -H {}:{}",
               num_proc, num_proc, offered, offered, merged.back().host,
               merged.back().slots.value_or(0) + num_proc - offered));
  }
  FillCrossRanks(&places);
  return places;
}

bool IsThisMachine(const std::string& host, std::span<const std::string> own_names) {
  const bool loopback =
      host == "localhost" || host == "::1" ||
      (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
  return loopback || std::find(own_names.begin(), own_names.end(), host) != own_names.end();
}

std::vector<HostRanks> HostsOf(const std::vector<RankPlace>& places,
                               const std::vector<HostSlots>& hosts,
                               std::span<const std::string> own_names) {
  std::vector<HostRanks> found;
  for (const RankPlace& place : places) {
    if (found.empty() || found.back().host != place.host) {
      const auto named = std::find_if(hosts.begin(), hosts.end(), [&place](const HostSlots& entry) {
        return entry.host == place.host && !entry.user.empty();
      });
      found.push_back({.host = place.host,
                       .user = named == hosts.end() ? "" : named->user,
                       .is_this_machine = IsThisMachine(place.host, own_names),
                       .first_rank = place.rank,
                       .rank_count = 0});
    }
    ++found.back().rank_count;
  }
  return found;
}

}  // namespace hvl::launcher
