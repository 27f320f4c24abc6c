#include "launcher/doctor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "csrc/base/str.h"
#include "launcher/spawn.h"

namespace hvl::launcher {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
// An interpreter with torch loaded has about this much before it does anything.
constexpr std::uint64_t kRankBytes = 300 * kMib;
// Workers of PyTorch's DataLoader hand their batches over through files there.
constexpr std::uint64_t kSharedPerRank = 256 * kMib;
constexpr std::uint64_t kUsualFiles = 1024;    // many data loaders of many workers use them up
constexpr std::uint64_t kThreadsBesides = 16;  // the runtime's, torch's own, those of an allocator
constexpr std::int64_t kYear2024 = 1704067200;

std::string Size(std::uint64_t bytes) {
  if (bytes >= kGib) return Format("{:.1f} GiB", static_cast<double>(bytes) / kGib);
  return Format("{} MiB", bytes / kMib);
}

std::string LimitText(Limit limit) { return limit ? Format("{}", *limit) : "unlimited"; }

std::string Counted(std::uint64_t count, std::string_view noun) {
  return Format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

class Examination {
 public:
  Examination(const HostFacts& facts, int rank_count, int threads_per_rank)
      : facts_(facts),
        ranks_(static_cast<std::uint64_t>(rank_count)),
        threads_(static_cast<std::uint64_t>(threads_per_rank)) {}

  std::vector<Finding> Run() {
    Add(Level::kOk, "system", facts_.kernel);
    Processors();
    Memory();
    Sharing();
    SharedFolder();
    HugePages();
    Files();
    Processes();
    Add(Level::kOk, "locked memory",
        facts_.locked_memory ? Format("{} may be locked", Size(*facts_.locked_memory))
                             : "any amount may be locked");
    Meeting();
    Watching();
    Clock();
    Python();
    return std::move(findings_);
  }

 private:
  void Add(Level level, std::string topic, std::string text, std::string cure = "") {
    findings_.push_back({level, std::move(topic), std::move(text), std::move(cure)});
  }

  void Processors() {
    std::uint64_t threads = 0;
    for (const Core& core : facts_.cores) threads += core.processors.size();
    std::string text =
        Format("{} with {} on {}", Counted(facts_.cores.size(), "usable core"),
               Counted(threads, "hardware thread"),
               Counted(static_cast<std::uint64_t>(NodeCount(facts_.cores)), "NUMA node"));
    double usable = static_cast<double>(facts_.cores.size());
    if (facts_.quota && *facts_.quota < usable) {
      usable = *facts_.quota;
      text += Format(", and time of {:.1f} by the control group's quota", usable);
    }
    if (static_cast<double>(ranks_) <= usable) return Add(Level::kOk, "processors", text);
    Add(Level::kWarn, "processors", Format("{}, for {}", text, Counted(ranks_, "rank")),
        "ranks that share a core wait for each other; start no more ranks than cores");
  }

  void Memory() {
    std::uint64_t total = facts_.memory_bytes;
    std::uint64_t available = facts_.available_bytes;
    std::string text = Format("{} available of {}", Size(available), Size(total));
    if (facts_.memory_limit && *facts_.memory_limit < total) {
      available = std::min(available, *facts_.memory_limit);
      text += Format(", and the control group allows {}", Size(*facts_.memory_limit));
    }
    if (total == 0) return Add(Level::kOk, "memory", "the system does not tell");
    if (available >= ranks_ * kRankBytes) return Add(Level::kOk, "memory", text);
    Add(Level::kWarn, "memory",
        Format("{}; {} of Python with torch need about {}", text, Counted(ranks_, "process"),
               Size(ranks_ * kRankBytes)),
        "start fewer ranks, or raise the limit of the container or batch job");
  }

  void Sharing() {
    if (facts_.memfd_error.empty()) {
      return Add(Level::kOk, "shared memory", "ranks can share memory (sealed memfd)");
    }
    Add(Level::kWarn, "shared memory", Format("ranks cannot share memory: {}", facts_.memfd_error),
        "allow memfd_create in the container's seccomp profile, or use HVL_CPU_OPERATIONS=tcp");
  }

  void SharedFolder() {
    const std::string topic = "/dev/shm";
    const std::string_view who = "horovodlite does not use it, data loaders of PyTorch do";
    if (!facts_.shm.exists) {
      return Add(Level::kWarn, topic, Format("is not there; {}", who),
                 "mount a tmpfs there, or use num_workers=0");
    }
    if (!facts_.shm.writable) {
      return Add(Level::kWarn, topic, Format("is not writable; {}", who),
                 "chmod 1777 /dev/shm, or mount it read-write");
    }
    const std::string text =
        Format("{} free of {}", Size(facts_.shm.free_bytes), Size(facts_.shm.total_bytes));
    if (facts_.shm.free_bytes >= ranks_ * kSharedPerRank) return Add(Level::kOk, topic, text);
    Add(Level::kWarn, topic, Format("{}; {}", text, who),
        "docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm");
  }

  void HugePages() {
    if (facts_.huge_pages.empty()) {
      return Add(Level::kOk, "huge pages", "the kernel has none that are transparent");
    }
    const std::string text = Format("transparent: {}; for shared memory: {}", facts_.huge_pages,
                                    facts_.shared_huge_pages);
    const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
    if (facts_.huge_pages == "never") {
      return Add(Level::kWarn, "huge pages", text,
                 Format("large tensors can be faster with them: echo madvise > {}enabled", folder));
    }
    if (facts_.shared_huge_pages == "never" || facts_.shared_huge_pages == "deny") {
      return Add(Level::kWarn, "huge pages", text,
                 Format("large allreduces can be faster with them: echo advise > {}shmem_enabled",
                        folder));
    }
    Add(Level::kOk, "huge pages", text);
  }

  void Files() {
    const std::string text =
        Format("a rank may open {}, hvlrun {}", LimitText(facts_.open_files_of_ranks),
               LimitText(facts_.open_files));
    const std::uint64_t needed = std::uint64_t{kFilesPerRank} * ranks_ + kUsualFiles / 16;
    if (facts_.open_files && *facts_.open_files < needed) {
      return Add(Level::kFail, "open files", Format("{}, which needs {}", text, needed),
                 "raise the hard limit (ulimit -Hn, /etc/security/limits.conf, LimitNOFILE=)");
    }
    if (facts_.open_files_of_ranks && *facts_.open_files_of_ranks < kUsualFiles) {
      return Add(Level::kWarn, "open files", text,
                 Format("data loaders may need more: ulimit -n {}", 4 * kUsualFiles));
    }
    Add(Level::kOk, "open files", text);
  }

  void Processes() {
    Limit limit = facts_.processes;
    if (facts_.group_processes && (!limit || *facts_.group_processes < *limit)) {
      limit = facts_.group_processes;
    }
    const std::string text =
        Format("{} may run at once, threads included", limit ? LimitText(limit) : "any number");
    const std::uint64_t needed = ranks_ * (threads_ + kThreadsBesides) + 2;
    if (limit && *limit < ranks_ + 2) {
      return Add(Level::kFail, "processes",
                 Format("{}; {} and hvlrun are more", text, Counted(ranks_, "rank")),
                 "raise ulimit -u, or the container's limit of processes (--pids-limit)");
    }
    if (limit && *limit < needed) {
      return Add(
          Level::kWarn, "processes",
          Format("{}; the threads of {} are about {}", text, Counted(ranks_, "rank"), needed),
          "raise ulimit -u, or the container's limit of processes (--pids-limit)");
    }
    Add(Level::kOk, "processes", text);
  }

  void Meeting() {
    if (facts_.socket_error.empty()) {
      return Add(Level::kOk, "connections", "Unix sockets and the loopback work");
    }
    Add(Level::kFail, "connections", Format("ranks cannot meet: {}", facts_.socket_error),
        "bring the loopback up (ip link set lo up); allow sockets in the sandbox");
  }

  void Watching() {
    if (!facts_.has_proc) {
      return Add(Level::kWarn, "processes' ends",
                 "/proc is not there, so what ranks leave running is not found",
                 "mount -t proc proc /proc");
    }
    if (!facts_.has_pidfd) {
      return Add(Level::kWarn, "processes' ends",
                 "pidfd_open is not allowed, so it is less sure which rank failed first",
                 "use Linux 5.3 or later, or allow pidfd_open in the sandbox");
    }
    Add(Level::kOk, "processes' ends", "are seen in their order");
  }

  void Clock() {
    const std::string source = facts_.clock_source.empty() ? "unknown" : facts_.clock_source;
    if (facts_.seconds_since_1970 < kYear2024) {
      return Add(Level::kWarn, "clock", "is years behind, so times in logs are wrong",
                 "set it (chronyd, timedatectl set-ntp true)");
    }
    if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
      return Add(Level::kWarn, "clock",
                 Format("the kernel reads it from {}, which is slow", source),
                 "see dmesg for why tsc was given up; boot with tsc=reliable if it is a mistake");
    }
    Add(Level::kOk, "clock", Format("source {}", source));
  }

  void Python() {
    const PythonFacts& python = facts_.python;
    const bool starts_python = IsPython(facts_.command);
    const std::string topic = "python";
    if (python.version.empty()) {
      const std::string text = python.path.empty() ? "no interpreter is in PATH"
                                                   : Format("{} does not run", python.path);
      return Add(starts_python ? Level::kFail : Level::kWarn, topic, text,
                 "activate the environment that has torch and horovodlite, or name its python");
    }
    const auto version = [](const std::string& text) {
      return text.empty() ? "missing" : text == "?" ? "from a source tree" : text;
    };
    const std::string text =
        Format("{} {}; torch {}, numpy {}, horovodlite {}", python.path, python.version,
               version(python.torch), version(python.numpy), version(python.horovodlite));
    if (python.horovodlite.empty()) {
      return Add(Level::kWarn, topic, text, Format("{} -m pip install horovodlite", python.path));
    }
    if (python.horovodlite != "?" && python.horovodlite != HVL_VERSION) {
      return Add(Level::kWarn, topic, Format("{}, and hvlrun is {}", text, HVL_VERSION),
                 "use the hvlrun of the same environment");
    }
    if (python.torch.empty()) {
      return Add(Level::kWarn, topic, text, Format("{} -m pip install torch", python.path));
    }
    Add(Level::kOk, topic, text);
  }

  const HostFacts& facts_;
  const std::uint64_t ranks_;
  const std::uint64_t threads_;
  std::vector<Finding> findings_;
};

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "fail";
  }
  return "";
}

}  // namespace

std::vector<Finding> Examine(const HostFacts& facts, int rank_count, int threads_per_rank) {
  return Examination(facts, rank_count, threads_per_rank).Run();
}

bool HasFailure(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::kFail; });
}

std::string FindingText(const Finding& finding) {
  std::string text = Format("{:<6} {:<15}  {}\n", Format("[{}]", LevelName(finding.level)),
                            finding.topic, finding.text);
  if (!finding.cure.empty()) text += Format("{:<22}  -> {}\n", "", finding.cure);
  return text;
}

std::string DoctorText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += FindingText(finding);
  const auto warnings = std::count_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.level == Level::kWarn;
  });
  if (HasFailure(findings)) return text + "\nThis machine cannot run such a job.\n";
  if (warnings > 0)
    return text + Format("\nJobs run here; {} of the above could be better.\n", warnings);
  return text + "\nAll is well.\n";
}

std::string DoctorJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json json;
  json["fit"] = !HasFailure(findings);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"level", LevelName(finding.level)},
                                {"topic", finding.topic},
                                {"text", finding.text},
                                {"cure", finding.cure}});
  }
  using Json = nlohmann::ordered_json;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hvl::launcher
