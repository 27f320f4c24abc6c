// What hvlrun reads from users and batch systems, and what ranks print, on its way to the screen.
#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/check.h"
#include "launcher/allocation.h"
#include "launcher/config_file.h"
#include "launcher/fold.h"
#include "launcher/host_plan.h"
#include "launcher/line_splitter.h"
#include "launcher/mpi_start.h"
#include "launcher/processors.h"
#include "launcher/screen.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

using launcher::HostSlots;

// Ranks that are placed there are numbered as everywhere.
void CheckHosts(const Result<std::vector<HostSlots>>& hosts) {
  if (!hosts.ok()) {
    HVL_CHECK(!hosts.status().message().empty());
    return;
  }
  for (const HostSlots& entry : *hosts) {
    HVL_CHECK(!entry.host.empty() && entry.slots.value_or(1) >= 1, "no host, or no slots");
    HVL_CHECK(entry.host.front() != '-' && entry.user.substr(0, 1) != "-", "an option of ssh");
  }
  const auto placed = launcher::PlaceRanks(*hosts, 3);
  if (!placed.ok()) return;
  HVL_CHECK(placed->size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const launcher::RankPlace& place = (*placed)[static_cast<std::size_t>(rank)];
    HVL_CHECK(place.rank == rank && place.size == 3 && place.local_rank < place.local_size);
  }
}

// What a stream was cut into, put together again.
std::string Joined(const launcher::Segment& piece) {
  using Ending = launcher::Segment::Ending;
  std::string text(piece.text);
  if (piece.ending == Ending::kReturnNewline || piece.ending == Ending::kReturn) text += '\r';
  if (piece.ending == Ending::kReturnNewline || piece.ending == Ending::kNewline) text += '\n';
  return text;
}

}  // namespace

void RunHosts(std::span<const std::byte> input) {
  const std::string_view text = Text(input);
  CheckHosts(launcher::ParseHosts(text));
  CheckHosts(launcher::ParseHostfile(text, "hosts"));
  const auto counts = launcher::ParseCounts(text);
  if (counts.ok()) HVL_CHECK(std::ranges::all_of(*counts, [](int count) { return count >= 0; }));
  if (const auto processors = launcher::ParseProcessors(text)) {
    HVL_CHECK(launcher::ParseProcessors(launcher::ProcessorText(*processors)) == processors);
  }
  const auto mpi = launcher::RecogniseMpi("mpirun", text);
  HVL_CHECK(mpi.ok() || mpi.status().code() == StatusCode::kNotSupported);
  const auto allocation = launcher::FindAllocation(
      launcher::EnvBlock({"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=" + std::string(text),
                          "SLURM_TASKS_PER_NODE=" + std::string(text.substr(text.find(';') + 1))}));
  if (allocation.ok() && *allocation) CheckHosts((*allocation)->hosts);
}

std::vector<Input> HostsCorpus(std::uint64_t) {
  std::vector<Input> corpus;
  for (const std::string_view text :
       {"localhost:2,127.0.0.1:3,[::1]:1,me@node[01-04]:8,other", "node1", "a:1,a:2,b",
        "gpu[08-10,7]r[1-2]:4", "node1 slots=4\n# comment\nme@node2 slots=2 max_slots=4\n",
        "[fd00::1] slots=2\nnode[1-3]:2\n\n", "node max-slots=3\r\nnode2\r\n", "2(x3),1",
        "node[01-03,7],x5;2(x3),1", "0-3,8\n", "0,2-5,64-127", "mpirun (Open MPI) 4.1.4\n",
        "HYDRA build details:\n    Version:                                 4.3.2\n",
        "Intel(R) MPI Library for Linux* OS, Version 2021.13\n", "slurm 23.11.4\n"})
    Add(text, corpus);
  return corpus;
}

void RunConfigFile(std::span<const std::byte> input) {
  const std::vector<std::string> given = {"fusion-threshold-mb", "verbose"};
  const auto settings = launcher::ParseConfigFile(std::string(Text(input)), "job.yaml", given);
  if (!settings.ok())
    HVL_CHECK(settings.status().message().starts_with("job.yaml:"), settings.status().message());
}

std::vector<Input> ConfigFileCorpus(std::uint64_t) {
  std::vector<Input> corpus;
  for (const std::string_view text :
       {"params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 2.5\n", "verbose: true\n",
        "autotune:\n  enabled: true\n  log_file: \"a b\"\n", "timeline:\n  filename: /tmp/t.json\n",
        "stall_check:\n  enabled: false\n  warning_time_seconds: 5\n", "controller: mpi\n",
        "a: &x {b: [1, 2]}\nc: *x\n", "verbose:\n", "- 1\n- 2\n", "# nothing\n",
        "params: {fusion_threshold_mb: 1, fusion_threshold_mb: 2}\n"})
    Add(text, corpus);
  return corpus;
}

// The first byte of a piece says which rank has written it, and how many bytes follow. Nothing is
// lost or torn, and the lines of a rank keep their order.
void RunOutput(std::span<const std::byte> input) {
  constexpr int kRanks = 3;
  constexpr std::size_t kLongestLine = 40;
  std::vector<launcher::LineSplitter> splitters(kRanks, launcher::LineSplitter(kLongestLine));
  std::vector<std::string> said(kRanks), cut(kRanks), held(kRanks), shown(kRanks);
  launcher::Screen screen({.rank_count = kRanks});
  std::string out;
  launcher::Fold fold(kRanks, [&](const launcher::SharedLine& line) {
    HVL_CHECK(!line.ranks.empty() && std::ranges::is_sorted(line.ranks));
    screen.WriteShared(line, &out);
    const launcher::Segment piece{.text = line.text, .ending = line.ending};
    for (const int rank : line.ranks) shown[static_cast<std::size_t>(rank)] += Joined(piece);
  });
  TimePoint now{};
  const auto take = [&](int rank, const launcher::Segment& piece) {
    const auto of = static_cast<std::size_t>(rank);
    HVL_CHECK(piece.text.size() <= kLongestLine, "a piece beyond the limit");
    HVL_CHECK(piece.text.find('\n') == std::string_view::npos, "two lines in one");
    cut[of] += Joined(piece);
    if (fold.Hold({.rank = rank}, piece, now)) {
      held[of] += Joined(piece);
    } else {
      HVL_CHECK(shown[of] == held[of], "a piece that overtakes its rank's lines");
      screen.Write({.rank = rank}, piece, &out);
    }
  };
  while (!input.empty()) {
    const auto head = std::to_integer<unsigned>(input.front());
    const int rank = static_cast<int>(head % kRanks);
    const std::size_t bytes = std::min<std::size_t>(head / 8, input.size() - 1);
    const std::string_view chunk = Text(input.subspan(1, bytes));
    const auto emit = [&](const launcher::Segment& piece) { take(rank, piece); };
    input = input.subspan(1 + bytes);
    now += std::chrono::milliseconds(head);
    said[static_cast<std::size_t>(rank)] += chunk;
    splitters[static_cast<std::size_t>(rank)].Feed(chunk, emit);
    if (head % 8 == 7) splitters[static_cast<std::size_t>(rank)].FlushOpen(emit);
    fold.OnTime(now);
  }
  for (int rank = 0; rank < kRanks; ++rank)
    splitters[static_cast<std::size_t>(rank)].Finish([&](const auto& piece) { take(rank, piece); });
  fold.Flush();
  HVL_CHECK(cut == said, "bytes lost between lines");
  HVL_CHECK(shown == held, "lines lost, repeated or out of order");
}

std::vector<Input> OutputCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr std::array<std::string_view, 7> kTexts = {
      "step 1\n",
      "step 2\r\n",
      "10%\r",
      "no end",
      "\n",
      "\xc3\xa4\xe2\x82\xac\n",
      "longer than the limit of a line, all of it\n"};
  std::vector<Input> corpus;
  for (int i = 0; i < 20; ++i) {
    std::string bytes;
    for (int piece = 0; piece < 30; ++piece) {
      const std::string_view text = kTexts[random() % kTexts.size()].substr(0, 31);
      bytes += static_cast<char>(text.size() * 8 + random() % 8);
      bytes += text;
    }
    Add(bytes, corpus);
  }
  return corpus;
}

}  // namespace hvl::fuzz
