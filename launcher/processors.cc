#include "launcher/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kBitsPerWord = 8 * sizeof(unsigned long);
constexpr int kMaxProcessors = 1 << 16;  // far above what kernels are built for

/// The number at the begin of `text`, which is cut off.
std::optional<int> TakeNumber(std::string_view* text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number < 0 || number >= kMaxProcessors) return std::nullopt;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return number;
}

}  // namespace

Processors AllowedProcessors() {
  std::vector<unsigned long> mask(1024 / kBitsPerWord);
  const auto read = [&mask] {
    return ::sched_getaffinity(0, mask.size() * sizeof(unsigned long),
                               reinterpret_cast<cpu_set_t*>(mask.data()));
  };
  // The kernel refuses a mask that is shorter than its own.
  while (read() != 0) {
    if (errno != EINVAL || mask.size() * kBitsPerWord >= kMaxProcessors) return {};
    mask.assign(2 * mask.size(), 0);
  }
  Processors allowed;
  for (std::size_t bit = 0; bit < mask.size() * kBitsPerWord; ++bit) {
    if ((mask[bit / kBitsPerWord] >> (bit % kBitsPerWord) & 1) != 0) {
      allowed.push_back(static_cast<int>(bit));
    }
  }
  return allowed;
}

std::optional<Processors> ParseProcessors(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  Processors processors;
  while (!text.empty()) {
    const std::optional<int> first = TakeNumber(&text);
    std::optional<int> last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = TakeNumber(&text);
    }
    if (!first || !last || *first > *last) return std::nullopt;
    for (int number = *first; number <= *last; ++number) processors.push_back(number);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  std::sort(processors.begin(), processors.end());
  processors.erase(std::unique(processors.begin(), processors.end()), processors.end());
  return processors;
}

std::string ProcessorText(const Processors& processors) {
  std::string text;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    text += Format("{}{}", text.empty() ? "" : ",", processors[i]);
    if (last > i) text += Format("-{}", processors[last]);
    i = last + 1;
  }
  return text;
}

std::vector<unsigned long> AffinityMask(const Processors& processors) {
  if (processors.empty()) return {};
  std::vector<unsigned long> mask(static_cast<std::size_t>(processors.back()) / kBitsPerWord + 1);
  for (const int number : processors) {
    const auto bit = static_cast<std::size_t>(number);
    mask[bit / kBitsPerWord] |= 1UL << (bit % kBitsPerWord);
  }
  return mask;
}

}  // namespace hvl::launcher
