// What users, batch systems and MPI launchers write: host lists and files, YAML, environments; what
// ranks print, on its way to the screen; and the page that a rank may fill with anything.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/status_page.h"
#include "csrc/config/config.h"
#include "csrc/config/launch.h"
#include "csrc/session/mpi_meeting.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

// Lines "NAME=value", as many environments are written.
config::MapEnv EnvironmentOf(std::string_view text) {
  std::map<std::string, std::string, std::less<>> values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      values.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return config::MapEnv(std::move(values));
}

bool IsPlace(int rank, int size) { return size >= 1 && rank >= 0 && rank < size; }

}  // namespace

// Whoever says where a rank stands, it then stands in a world.
void RunEnvironment(std::span<const std::byte> input) {
  const config::MapEnv env = EnvironmentOf(Text(input));
  std::vector<std::string> warnings;
  auto config = config::Config::Parse(env, &warnings);
  if (!config.ok()) {
    HVL_CHECK(!config.status().message().empty());
    return;
  }
  HVL_CHECK(IsPlace(config->rank, config->size), "a rank outside of its world");
  const auto launch = config::FindLaunch(env, &*config);
  if (!launch.ok()) return;
  HVL_CHECK(IsPlace(config->rank, config->size), "a launcher's rank outside of its world");
  HVL_CHECK(IsPlace(config->local_rank, config->local_size), "a local rank outside of its host");
  HVL_CHECK(config->local_size <= config->size && config->local_rank <= config->rank);
  HVL_CHECK(launch->head_port >= 0 && launch->head_port <= 65535);
}

std::vector<Input> EnvironmentCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> corpus;
  for (int i = 0; i < 4; ++i) {
    const int size = static_cast<int>(random() % 8) + 1;
    const int rank = static_cast<int>(random()) & (size - 1) ? 0 : size - 1;
    const auto place = [&](std::string_view rank_name, std::string_view size_name) {
      return Format("{}={}\n{}={}\n", rank_name, rank, size_name, size);
    };
    Add(place("HVL_RANK", "HVL_SIZE") + "HVL_CYCLE_TIME=2.5\nHOROVOD_FUSION_THRESHOLD=8388608\n",
        corpus);
    Add(place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") +
            place("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE") +
            "PMIX_NAMESPACE=1234@5\n",
        corpus);
    Add(place("PMI_RANK", "PMI_SIZE") + place("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), corpus);
    Add(place("SLURM_PROCID", "SLURM_NTASKS") +
            "SLURM_LOCALID=0\nSLURM_STEP_TASKS_PER_NODE=2(x3),1\nSLURM_NODEID=0\n"
            "SLURM_JOB_ID=17\nSLURM_STEP_ID=0\nSLURM_STEP_NODELIST=node[01-03,7],x5\n"
            "SLURM_STEP_NUM_TASKS=7\nSLURM_STEP_RESV_PORTS=1024-1025\n",
        corpus);
    Add(place("RANK", "WORLD_SIZE") + place("LOCAL_RANK", "LOCAL_WORLD_SIZE") +
            "MASTER_ADDR=node1\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=x\n",
        corpus);
  }
  return corpus;
}

// Any page gives some report, whose texts are short and harmless to a terminal.
void RunStatusPage(std::span<const std::byte> input) {
  alignas(64) std::array<std::byte, kStatusPageBytes> page{};
  MakeStatusPage(page.data());
  const std::size_t fixed = sizeof(std::uint64_t);  // the mark of who made it
  const auto content = input.first(std::min(input.size(), page.size() - fixed));
  std::ranges::copy(content, page.begin() + fixed);
  const StatusReport report = ReadStatusPage(page.data(), SteadyClock().Now());
  for (const std::string& text :
       {report.text, report.submitted.kind, report.submitted.name, report.started.kind,
        report.started.name, report.completed.kind, report.completed.name}) {
    HVL_CHECK(text.size() <= 8 * status_page::kTextWords, "a long text");
    HVL_CHECK(std::ranges::none_of(
                  text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }),
              "a text that moves the cursor");
  }
}

std::vector<Input> StatusPageCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> corpus(10, Input(kStatusPageBytes - sizeof(std::uint64_t)));
  for (Input& page : corpus) {
    for (std::byte& byte : page)
      if (random() % 2 == 0) byte = static_cast<std::byte>(random() % 4);
  }
  return corpus;
}

void RunGreeting(std::span<const std::byte> input) {
  const auto greeting = session::DecodeGreeting(Text(input));
  if (!greeting.ok()) return;
  const auto again = session::DecodeGreeting(session::EncodeGreeting(*greeting));
  HVL_CHECK(again.ok() && *again == *greeting, "a greeting that changes on its way");
  const std::vector<session::MpiGreeting> all = {*greeting, *again};
  HVL_CHECK(session::AddressAmong(all, *greeting).empty(), "ranks of one host need no address");
}

std::vector<Input> GreetingCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> corpus;
  for (int i = 0; i < 10; ++i) {
    session::MpiGreeting greeting{.rank = static_cast<int>(random() % 100),
                                  .host_id = std::string(random() % 20, 'h'),
                                  .job_id = "j",
                                  .addresses = {}};
    for (std::uint64_t n = random() % 4; n > 0; --n)
      greeting.addresses.push_back({n == 1 ? "fd00::1" : "10.0.0.1", 24});
    Add(session::EncodeGreeting(greeting), corpus);
  }
  return corpus;
}

}  // namespace hvl::fuzz
