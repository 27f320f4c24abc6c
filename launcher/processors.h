// Sets of processors (what Linux calls CPUs: hardware threads) as sorted lists of their numbers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvl::launcher {

using Processors = std::vector<int>;

/// Those that this process, and so its ranks, may run on. Empty when the system does not tell.
Processors AllowedProcessors();

/// "0-3,8" as the system writes it, with or without a newline; nothing when it is no such list.
std::optional<Processors> ParseProcessors(std::string_view text);
/// "0-3,8"; also for cores and nodes, which are numbered alike.
std::string ProcessorText(const Processors& processors);

/// As the kernel takes it: one bit for each processor, from the lowest bit of the first word on.
std::vector<unsigned long> AffinityMask(const Processors& processors);

}  // namespace hvl::launcher
