// The options of each launcher are those of its manual: mpirun(1) of Open MPI 4.1, prterun(1) of
// PRRTE 3 (which is mpirun of Open MPI 5), `mpiexec.hydra -help`, Intel MPI's reference, srun(1).
#include "launcher/mpi_start.h"

#include <fcntl.h>
#include <unistd.h>
#include <wordexp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "csrc/base/str.h"
#include "csrc/net/secret.h"
#include "launcher/command.h"
#include "launcher/control_group.h"
#include "launcher/errors.h"
#include "launcher/host_env.h"
#include "launcher/processors.h"
#include "launcher/rank_env.h"
#include "launcher/shell_word.h"

namespace hvl::launcher {
namespace {

using WordList = std::vector<std::string>;

bool IsOpenMpi(MpiKind kind) { return kind == MpiKind::kOpenMpi4 || kind == MpiKind::kOpenMpi5; }
bool IsHydra(MpiKind kind) { return kind == MpiKind::kHydra || kind == MpiKind::kIntel; }

void AppendWords(WordList* words, const WordList& more) {
  words->insert(words->end(), more.begin(), more.end());
}

std::string JoinWords(const WordList& words, char separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

/// The words of --mpi-args and the like, as a shell takes them; without commands in them.
Result<WordList> WordsOfShell(std::string_view option, const std::string& text) {
  wordexp_t expanded{};
  // hvlrun has one thread. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const int code = ::wordexp(text.c_str(), &expanded, WRDE_NOCMD);
  const std::unique_ptr<wordexp_t, void (*)(wordexp_t*)> owner(&expanded, &::wordfree);
  if (code == 0) return WordList(expanded.we_wordv, expanded.we_wordv + expanded.we_wordc);
  return Invalid(
      Format("{} '{}' is not valid: expected words as in a shell, without commands or "
             "redirections, and quotes in pairs",
             option, text));
}

// --- Options ----------------------------------------------------------------------------------

/// What hvlrun does while a job runs, and so does not when it has become another program.
Status CheckAlone(const Options& options) {
  if (options.wait_for > 0) {
    return Invalid("--wait-for does not go with --mpi: MPI calls the hosts itself");
  }
  if (options.max_restarts > 0) {
    return Invalid(
        "--max-restarts does not go with --mpi: hvlrun becomes the MPI launcher, and nobody is "
        "left to start the ranks again; leave out --mpi, or repeat the command in a script");
  }
  if (options.timeout) {
    return Invalid(
        "--timeout does not go with --mpi: hvlrun becomes the MPI launcher; "
        "`timeout SECONDS hvlrun --mpi ...` ends the job instead");
  }
  return Status::Ok();
}

WordList WithoutEffect(const Options& options) {
  const Options usual;
  WordList warnings;
  const auto warn = [&warnings](bool given, std::string_view option, std::string_view reason) {
    if (given) warnings.push_back(Format("{} has no effect with --mpi: {}", option, reason));
  };
  constexpr std::string_view kOutput = "MPI's launcher shows the output";
  constexpr std::string_view kEnd = "MPI's launcher ends the ranks";
  warn(!options.shown.ranges.empty(), "--show", kOutput);
  warn(options.fold, "--fold", kOutput);
  warn(options.failure_grace != usual.failure_grace, "--grace", kEnd);
  warn(options.signal_grace != usual.signal_grace, "--signal-grace", kEnd);
  warn(!options.head_address.empty(), "--head-address", "ranks find each other through MPI");
  warn(!options.starter.remote_hvlrun.empty(), "--remote-hvlrun", "no hvlrun runs on the hosts");
  return warnings;
}

// --- Where -----------------------------------------------------------------------------------

/// "a:2,b:2". All launchers fill hosts in this order, so ranks stand where hvlrun would put them.
Result<std::string> HostList(const Job& job) {
  WordList entries;
  for (const HostRanks& host : job.hosts) {
    if (!host.user.empty()) {
      return Invalid(
          Format("-H {}@{}: MPI's launchers take no users; name the user of this host "
                 "in ~/.ssh/config",
                 host.user, host.host));
    }
    if (host.host.find(':') != std::string::npos) {
      return Invalid(Format("-H [{}]: MPI's launchers take no IPv6 addresses; give the host a name",
                            host.host));
    }
    entries.push_back(Format("{}:{}", host.host, host.rank_count));
  }
  return JoinWords(entries, ',');
}

int MostRanksOfHost(const Job& job) {
  int most = job.hosts.empty() ? job.options.num_proc : 1;
  for (const HostRanks& host : job.hosts) most = std::max(most, host.rank_count);
  return most;
}

Result<WordList> PlaceWords(const Job& job, MpiKind kind) {
  const std::string count = Format("{}", job.options.num_proc);
  HVL_ASSIGN_OR_RETURN(const std::string hosts, HostList(job));
  WordList words{kind == MpiKind::kSlurm ? "-n" : "-np", count};
  if (kind == MpiKind::kSlurm) {
    words.emplace_back("--distribution=block");
    if (hosts.empty()) return words;
    for (const HostRanks& host : job.hosts) {
      if (host.rank_count != job.hosts.front().rank_count) {
        return Invalid("srun takes the same number of ranks for each host; give all of -H one");
      }
    }
    WordList names;
    for (const HostRanks& host : job.hosts) names.push_back(host.host);
    AppendWords(&words, {"-w", JoinWords(names, ','), "--ntasks-per-node",
                         Format("{}", job.hosts.front().rank_count)});
    return words;
  }
  if (!hosts.empty()) AppendWords(&words, {IsOpenMpi(kind) ? "-H" : "-hosts", hosts});
  return words;
}

/// --binding-args, or what --bind stands for; auto binds nobody, as horovodrun.
Result<WordList> BindingWords(const Options& options, MpiKind kind) {
  if (!options.mpi.binding_args.empty()) {
    return WordsOfShell("--binding-args", options.mpi.binding_args);
  }
  const bool core = options.bind == BindPolicy::kCore;
  const bool numa = options.bind == BindPolicy::kNuma;
  const std::string unit = core ? "core" : numa ? "numa" : "none";
  switch (kind) {
    case MpiKind::kOpenMpi4:
      return WordList{"--bind-to", unit, "--map-by", "slot", "--oversubscribe"};
    case MpiKind::kOpenMpi5:
      return WordList{"--bind-to", unit, "--map-by", "slot:OVERSUBSCRIBE"};
    case MpiKind::kHydra:
      return WordList{"-bind-to", unit};
    case MpiKind::kIntel:
      if (!core && !numa) return WordList{"-genv", "I_MPI_PIN", "0"};
      return WordList{"-genv", "I_MPI_PIN_DOMAIN", unit};
    case MpiKind::kSlurm:
      return WordList{Format("--cpu-bind={}", core ? "cores" : numa ? "ldoms" : "none")};
  }
  return WordList();
}

// --- How -------------------------------------------------------------------------------------

/// Tags of lines, times, and copies in files.
WordList OutputWords(const Options& options, MpiKind kind, WordList* warnings) {
  const std::string& folder = options.log_dir;
  const bool times = options.timestamps;
  if (times && !IsOpenMpi(kind)) {
    warnings->emplace_back(
        "--prefix-timestamp has no effect with --mpi: this launcher shows no times");
  }
  WordList words;
  switch (kind) {
    case MpiKind::kOpenMpi4:
      if (options.tag_lines) words.emplace_back("--tag-output");
      if (times) words.emplace_back("--timestamp-output");
      if (!folder.empty()) AppendWords(&words, {"--output-filename", folder});
      break;
    case MpiKind::kOpenMpi5: {
      WordList parts;
      if (options.tag_lines) parts.emplace_back("tag");
      if (times) parts.emplace_back("timestamp");
      if (!folder.empty()) parts.push_back(Format("dir={}", folder));
      if (!parts.empty()) AppendWords(&words, {"--output", JoinWords(parts, ',')});
      break;
    }
    case MpiKind::kHydra:
    case MpiKind::kIntel:
      if (options.tag_lines) words.emplace_back("-prepend-rank");
      if (!folder.empty()) {
        AppendWords(&words, {"-outfile-pattern", folder + "/rank.%r.stdout", "-errfile-pattern",
                             folder + "/rank.%r.stderr"});
      }
      break;
    case MpiKind::kSlurm:
      if (options.tag_lines) words.emplace_back("--label");
      if (!folder.empty()) {
        AppendWords(&words, {Format("--output={}/rank.%t.stdout", folder),
                             Format("--error={}/rank.%t.stderr", folder)});
      }
      break;
  }
  return words;
}

/// Which rank reads; that nobody does is up to who opens /dev/null.
WordList InputWords(const Options& options, MpiKind kind) {
  if (options.stdin_rank.value_or(0) == 0) return {};  // rank 0 always reads
  const std::string rank = Format("{}", *options.stdin_rank);
  if (IsOpenMpi(kind)) return {"--stdin", rank};
  if (kind == MpiKind::kSlurm) return {"--input=" + rank};
  return {"-s", rank};
}

/// Only what was asked for: MPI knows the networks of its cluster better.
WordList NetworkWords(const Options& options, MpiKind kind, WordList* warnings) {
  WordList words;
  if (!options.interfaces.empty()) {
    const std::string names = JoinWords(options.interfaces, ',');
    if (IsOpenMpi(kind)) {
      AppendWords(&words, {"--mca", "btl_tcp_if_include", names});
      AppendWords(&words, {kind == MpiKind::kOpenMpi4 ? "--mca" : "--prtemca", "oob_tcp_if_include",
                           names});
    } else if (IsHydra(kind)) {
      AppendWords(&words, {"-iface", options.interfaces.front()});
    }
  }
  if (options.mpi.tcp && IsOpenMpi(kind)) {
    AppendWords(&words, {"--mca", "pml", "ob1", "--mca", "btl", "self,tcp"});
  } else if (options.mpi.tcp) {
    warnings->emplace_back("--tcp has no effect with --mpi: this MPI chooses its network itself");
  }
  return words;
}

/// Options of ssh, for all launchers that call it.
std::string SshWords(const StarterOptions& starter) {
  WordList words;
  if (starter.ssh_accept_new) AppendWords(&words, {"-o", "StrictHostKeyChecking=accept-new"});
  if (starter.ssh_port) AppendWords(&words, {"-p", Format("{}", *starter.ssh_port)});
  if (!starter.ssh_identity_file.empty()) AppendWords(&words, {"-i", starter.ssh_identity_file});
  return JoinWords(words, ' ');
}

/// How the launcher reaches hosts. Hydra takes a program and its options apart from each other, the
/// latter from a variable.
WordList RemoteWords(const Job& job, MpiKind kind, EnvBlock* env) {
  const StarterOptions& starter = job.options.starter;
  if (job.hosts.empty() || kind == MpiKind::kSlurm) return {};
  const bool by_srun = starter.rsh == "srun";
  const bool by_ssh = starter.rsh == "ssh";
  const std::string ssh_words = SshWords(starter);
  if (IsOpenMpi(kind)) {
    const bool is4 = kind == MpiKind::kOpenMpi4;
    const std::string mca = is4 ? "--mca" : "--prtemca";
    const std::string component = is4 ? "plm_rsh" : "plm_ssh";
    if (by_srun) return {mca, "plm", "slurm"};
    if (!by_ssh) return {mca, component + "_agent", starter.rsh};
    if (ssh_words.empty()) return {};
    return {mca, component + "_args", ssh_words};
  }
  if (by_srun) return {"-launcher", "slurm"};
  if (by_ssh && ssh_words.empty()) return {};
  const std::size_t end = starter.rsh.find(' ');
  std::string extra = by_ssh ? ssh_words : "";
  if (!by_ssh && end != std::string::npos) extra = starter.rsh.substr(end + 1);
  if (!extra.empty()) env->Set("HYDRA_LAUNCHER_EXTRA_ARGS", extra);
  if (by_ssh) return {"-launcher", "ssh"};
  return {"-launcher", "ssh", "-launcher-exec", starter.rsh.substr(0, end)};
}

// --- Environment -----------------------------------------------------------------------------

/// Names that Open MPI's -x takes: no patterns, no functions of a shell.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name.find_first_of("*?[]%(){};, \t\n") == std::string_view::npos;
}

/// Belongs to a launcher that runs further out, and not to the ranks of this one.
bool IsOfOuterLauncher(std::string_view name) {
  constexpr auto kPrefixes = std::to_array<std::string_view>(
      {"OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "OMPI_MCA_ess", "OMPI_MCA_orte"});
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string EntryName(const std::string& entry) { return entry.substr(0, entry.find('=')); }

/// What the ranks get: as under hvlrun, but for who they are, which MPI's launcher tells them; and
/// without PYTHONUNBUFFERED: MPI's launchers put a tag before each write, into the middle of a line
/// when Python writes it in pieces.
EnvBlock MpiEnvironment(const Job& job) {
  WordList entries;
  for (const std::string& entry : job.inherited.entries()) {
    if (!IsIdentityVariable(EntryName(entry))) entries.push_back(entry);
  }
  EnvBlock env(std::move(entries));
  for (const EnvSetting& setting : job.exports) env.Set(setting.name, setting.value);
  for (const EnvSetting& setting : job.options.knobs) env.Set(setting.name, setting.value);
  if (job.options.mpi.threads_disable) {
    env.Set("HVL_MPI_THREADS_DISABLE", "1");
    env.Set("HOROVOD_MPI_THREADS_DISABLE", "1");
  }
  if (!env.Get("HOROVOD_CPU_OPERATIONS")) env.SetIfMissing("HVL_CPU_OPERATIONS", "mpi");
  constexpr std::size_t kJobIdLength = 12;
  env.Set("HVL_JOB_ID", net::RandomName().substr(0, kJobIdLength));
  const Topology cores = ReadTopology("/sys/devices/system", AllowedProcessors());
  const Binding shares =
      BindRanks(cores, BindPolicy::kNone, MostRanksOfHost(job), ProcessorQuota());
  env.SetIfMissing("OMP_NUM_THREADS", Format("{}", shares.threads_per_rank));
  return env;
}

/// Open MPI gives ranks on other hosts only what is named; the values stay off the command line.
WordList PassedOn(const Job& job, MpiKind kind, const EnvBlock& env) {
  WordList words;
  if (job.hosts.empty() || !IsOpenMpi(kind)) return words;
  for (const std::string& entry : env.entries()) {
    const std::string name = EntryName(entry);
    const bool set_by_user =
        std::any_of(job.exports.begin(), job.exports.end(),
                    [&name](const EnvSetting& setting) { return setting.name == name; });
    const bool stays = (IsHostVariable(name) && !set_by_user) || IsOfOuterLauncher(name);
    if (!stays && IsPlainName(name)) AppendWords(&words, {"-x", name});
  }
  return words;
}

// --- Which MPI -------------------------------------------------------------------------------

std::string_view FamilyOf(MpiKind kind) { return IsOpenMpi(kind) ? "openmpi" : "mpich"; }

/// Each of the two names its libraries in its own way; a third has no say.
std::string_view FamilyOfLibrary(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (name.starts_with("libmpi.so.40")) return "openmpi";
  if (name.starts_with("libmpi.so.12") || name.starts_with("libmpich.so")) return "mpich";
  return "";
}

/// The ranks open the library of HVL_MPI_LIBRARY, else the one that lies beside their launcher.
Status CheckLibrary(const MpiLauncher& launcher, const EnvBlock& env) {
  const std::string_view library = env.Get("HVL_MPI_LIBRARY").value_or("");
  const std::string_view family = FamilyOfLibrary(library);
  if (family.empty() || launcher.kind == MpiKind::kSlurm || family == FamilyOf(launcher.kind)) {
    return Status::Ok();
  }
  return Invalid(
      Format("HVL_MPI_LIBRARY={} is another MPI than that of {} ({}): every rank would be "
             "alone; put the bin folder of that MPI first into PATH, or unset it",
             library, launcher.program, launcher.version));
}

}  // namespace

Result<MpiLauncher> RecogniseMpi(const std::string& program, std::string_view text) {
  MpiLauncher launcher{.program = program, .version = std::string(text.substr(0, text.find('\n')))};
  const auto says = [text](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  };
  if (says("Open MPI) ")) {
    const std::size_t number = text.find("Open MPI) ") + std::string_view("Open MPI) ").size();
    const bool is_old = number < text.size() && text[number] <= '4';
    launcher.kind = is_old ? MpiKind::kOpenMpi4 : MpiKind::kOpenMpi5;
  } else if (says("OpenRTE") || says("Spectrum MPI")) {
    launcher.kind = MpiKind::kOpenMpi4;
  } else if (says("Intel(R) MPI")) {
    launcher.kind = MpiKind::kIntel;
  } else if (says("HYDRA") || says("MPICH")) {
    launcher.kind = MpiKind::kHydra;
  } else if (text.starts_with("slurm ")) {
    launcher.kind = MpiKind::kSlurm;
  } else {
    return Status(StatusCode::kNotSupported,
                  Format("--mpi: {} is of an MPI that hvlrun does not know: it says '{}'; expected "
                         "Open MPI, MPICH, Intel MPI or Slurm. Start the ranks with it directly: "
                         "{} -n 4 python train.py",
                         program, launcher.version, program));
  }
  return launcher;
}

Result<MpiLauncher> FindMpi(const EnvBlock& env) {
  const std::string_view path = env.Get("PATH").value_or("");
  std::string program;
  for (const char* name : {"mpirun", "mpiexec", "srun"}) {
    const bool is_srun = std::string_view(name) == "srun";
    if (is_srun && !env.Get("SLURM_JOB_ID")) continue;
    if (FindProgram(name, path, &program).exit_code != 0) continue;
    // As root, Open MPI tells its version only where it is allowed to run.
    const std::string command = Format(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "{} --version 2>&1 </dev/null",
        ShellWord(program));
    // The user's own program, quoted. NOLINTNEXTLINE(bugprone-command-processor)
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
    std::string text;
    std::array<char, 256> part{};
    while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) {
      text += part.data();
    }
    return RecogniseMpi(program, text);
  }
  return Status(StatusCode::kNotSupported,
                "--mpi: there is no mpirun or mpiexec in PATH, and no allocation of Slurm; install "
                "one (on Debian or Ubuntu openmpi-bin or mpich), or leave out --mpi");
}

Result<MpiCommand> MpiCommandOf(const Job& job, const MpiLauncher& launcher, bool is_root) {
  const Options& options = job.options;
  const MpiKind kind = launcher.kind;
  HVL_RETURN_IF_ERROR(CheckAlone(options));
  MpiCommand command{
      .words = {launcher.program}, .env = MpiEnvironment(job), .warnings = WithoutEffect(options)};
  HVL_RETURN_IF_ERROR(CheckLibrary(launcher, command.env));
  WordList* const words = &command.words;
  if (is_root && IsOpenMpi(kind)) words->emplace_back("--allow-run-as-root");
  AppendWords(words, OutputWords(options, kind, &command.warnings));
  HVL_ASSIGN_OR_RETURN(const WordList places, PlaceWords(job, kind));
  AppendWords(words, places);
  HVL_ASSIGN_OR_RETURN(const WordList binding, BindingWords(options, kind));
  AppendWords(words, binding);
  if (options.report_bindings && kind == MpiKind::kOpenMpi4) {
    words->emplace_back("--report-bindings");
  } else if (options.report_bindings && kind == MpiKind::kOpenMpi5) {
    AppendWords(words, {"--display", "bind"});
  } else if (options.report_bindings) {
    command.warnings.emplace_back(
        "--report-bindings has no effect with --mpi: this launcher does not tell them");
  }
  AppendWords(words, InputWords(options, kind));
  AppendWords(words, NetworkWords(options, kind, &command.warnings));
  AppendWords(words, RemoteWords(job, kind, &command.env));
  AppendWords(words, PassedOn(job, kind, command.env));
  HVL_ASSIGN_OR_RETURN(const WordList more, WordsOfShell("--mpi-args", options.mpi.args));
  AppendWords(words, more);
  AppendWords(words, options.command);
  return command;
}

std::string DescribeMpi(const Job& job, const MpiCommand& command) {
  std::string text;
  for (const std::string& word : command.words) {
    if (!text.empty()) text += ' ';
    text += ShellWord(word);
  }
  text += "\n\nenvironment, besides what is inherited:\n";
  for (const std::string& entry : command.env.entries()) {
    const WordList& known = job.inherited.entries();
    if (std::find(known.begin(), known.end(), entry) == known.end()) {
      text += Format("  {}\n", entry);
    }
  }
  return text;
}

Refusal BecomeMpi(MpiCommand command, bool reads_stdin) {
  if (!reads_stdin) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0) {
      return {kExitLauncherError, Format("cannot open /dev/null: {}", ErrnoText(errno))};
    }
    ::close(nothing);
  }
  std::vector<char*> words;
  for (std::string& word : command.words) words.push_back(word.data());
  words.push_back(nullptr);
  ::execve(command.words.front().c_str(), words.data(), command.env.Pointers().data());
  return {kExitCannotExec,
          Format("cannot execute '{}': {}", command.words.front(), ErrnoText(errno))};
}

}  // namespace hvl::launcher
