#include "tests/cpp/fuzz/driver.h"

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <optional>
#include <vector>

#include "csrc/base/str.h"
#include "tests/cpp/fuzz/mutate.h"
#include "tests/cpp/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// In sanitizer builds: called before the process is ended by a report.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the sanitizers' name
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace hvl::fuzz {
namespace {

// What runs now, for the last words: a signal handler has no other way to get at it.
std::array<char, 200> g_last_words;

void SayLastWords() {
  const std::size_t size = std::char_traits<char>::length(g_last_words.data());
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, g_last_words.data(), size);
}

void OnAbort(int) { SayLastWords(); }

void PrepareLastWords() {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SayLastWords);
  std::signal(SIGABRT, OnAbort);  // HVL_CHECK
}

std::uint64_t DriveTarget(std::size_t index, const Target& target, const DriveOptions& options,
                          std::chrono::duration<double> time) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Input> corpus = target.corpus(options.seed);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  std::vector<std::uint8_t> bytes;
  std::uint64_t iteration = options.first_iteration;
  do {
    const auto [tail, count] = fmt::format_to_n(
        g_last_words.data(), g_last_words.size() - 1,
        "\nfuzz: again by: hvl_fuzz --target {} --seed {} --iteration {} --seconds 0\n",
        target.name, options.seed, iteration);
    *tail = '\0';
    bytes.assign(1, static_cast<std::uint8_t>(index));
    for (const std::byte byte : MakeInput(corpus, options.seed, iteration)) {
      bytes.push_back(std::to_integer<std::uint8_t>(byte));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    ++iteration;
  } while (Clock::now() < end);
  return iteration - options.first_iteration;
}

}  // namespace

std::string Drive(const DriveOptions& options) {
  PrepareLastWords();
  const std::span<const Target> targets = Targets();
  std::string text;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!options.target.empty() && options.target != targets[i].name) continue;
    const auto share = options.time / (options.target.empty() ? targets.size() : 1);
    const std::uint64_t inputs = DriveTarget(i, targets[i], options, share);
    text += Format("{}: {} inputs, seed {}\n", targets[i].name, inputs, options.seed);
  }
  std::signal(SIGABRT, SIG_DFL);
  return text;
}

}  // namespace hvl::fuzz
