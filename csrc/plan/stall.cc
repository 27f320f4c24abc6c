#include "csrc/plan/stall.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::plan {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Duration DeadlockAge(const Options& options) {
  constexpr Duration kMost = std::chrono::seconds(5);
  return options.stall_check ? std::min(kMost, options.stall_warning) : kMost;
}

Notice StallNotice(const std::vector<StalledOperation>& stalled) {
  constexpr std::size_t kMaxShown = 10;
  std::string text =
      stalled.size() == 1
          ? "1 operation waits for ranks that have not submitted it"
          : Format("{} operations wait for ranks that have not submitted them", stalled.size());
  text += " (do all ranks run the same steps? is a rank stuck or slow?)";
  for (std::size_t i = 0; i < stalled.size() && i < kMaxShown; ++i) {
    const StalledOperation& operation = stalled[i];
    text +=
        Format("\n  '{}'{} for {:.1f} s: missing on {}; ready on {}", operation.name, operation.set,
               Seconds(operation.age), operation.missing.ToString(), operation.ready.ToString());
    if (!operation.sites.empty()) text += Format(" (at {})", operation.sites);
  }
  if (stalled.size() > kMaxShown) text += Format("\n  and {} more", stalled.size() - kMaxShown);
  return {LogLevel::kWarning, std::move(text)};
}

Status StallError(const StalledOperation& stalled, Duration limit) {
  const std::string sites = stalled.sites.empty() ? "" : Format(" (at {})", stalled.sites);
  return {
      StatusCode::kTimeout,
      Format("tensor '{}'{} has waited {:.1f} s for {} (the limit is "
             "HVL_STALL_SHUTDOWN_TIME_SECONDS={:g}); {} submitted it{}. Do all ranks run the same "
             "steps?",
             stalled.name, stalled.set, Seconds(stalled.age), stalled.missing.ToString(),
             Seconds(limit), stalled.ready.ToString(), sites),
      stalled.missing.First()};
}

}  // namespace hvl::plan
