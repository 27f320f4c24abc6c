#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/config/env_names.h"
#include "launcher/compat_options.h"
#include "launcher/errors.h"
#include "launcher/knob_flags.h"
#include "launcher/rank_env.h"

namespace hvl::launcher {
namespace {

constexpr int kMaxRanks = 1048576;
constexpr double kMaxSeconds = 31.0 * 86400;

// The command-line library knows -x and --long only; these spellings of horovodrun are rewritten
// before it sees them.
struct Respelling {
  std::string_view single_dash;
  std::string_view name;
};
constexpr auto kSingleDash = std::to_array<Respelling>({
    {"-np", "--num-proc"},
    {"-hostfile", "--hostfile"},
    {"-cb", "--check-build"},
    {"-prefix-timestamp", "--prefix-timestamp"},
});

constexpr std::string_view kDescription =
    "Starts N copies of a training command on this machine, as ranks of one job, and watches over\n"
    "them: their output is tagged by rank, and when one fails all are stopped and the first to "
    "fail\n"
    "is named.\n";

constexpr std::string_view kFooter =
    "Everything after the command belongs to the command. Exit status: 0, or that of the rank "
    "that\n"
    "failed first (128 + signal when a signal ended it); 124 --timeout; 125 an error of hvlrun; "
    "126\n"
    "the command cannot be executed; 127 it does not exist; 130 SIGINT; 143 SIGTERM.\n"
    "\n"
    "Examples:\n"
    "  hvlrun -np 2 python train.py --epochs 3         two ranks\n"
    "  hvlrun -np 4 --show 0 python train.py           show the output of rank 0 only\n"
    "  hvlrun -np 4 --log-dir logs python train.py     also write logs/rank.N/stdout and stderr\n"
    "  hvlrun -np 2 --stdin 0 python -m pdb train.py   rank 0 reads the terminal\n"
    "  hvlrun -np 2 -x OMP_NUM_THREADS=4 python t.py   set a variable for all ranks\n"
    "  hvlrun -np 2 --dry-run python train.py          show what would be started\n"
    "  hvlrun -np 2 --drop-in python train.py          train.py says: import horovod.torch as hvd\n"
    "  hvlrun -np 2 --config-file job.yaml python t.py options from a file of horovodrun\n"
    "  hvlrun -np 4 -H 'localhost:2,127.0.0.[1-2]:1' python t.py   several names of this machine\n"
    "  hvlrun --check-build                            show what this installation can do";

constexpr std::size_t kHelpColumn = 36;
constexpr std::size_t kHelpWidth = 64;

/// Breaks a help text into lines, because the library does not.
std::string Wrap(std::string_view text) {
  std::string wrapped;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, space - at);
    if (column != 0 && column + 1 + word.size() > kHelpWidth) {
      wrapped += '\n';
      column = 0;
    } else if (column != 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
    at = space + 1;
  }
  return wrapped;
}

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kHelpColumn); }

  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: hvlrun -np N [options] command [arguments]\n";
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::string names;
    for (const Respelling& row : kSingleDash) {
      if (option->check_name(std::string(row.name))) names += Format("{}, ", row.single_dash);
    }
    for (const std::string& name : option->get_snames()) names += Format("-{}, ", name);
    for (const std::string& name : option->get_lnames()) names += Format("--{}, ", name);
    names.resize(names.size() - 2);
    return names;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return "";
    return " " + option->get_type_name();
  }
};

std::string Quoted(const std::string& value) { return "'" + value + "'"; }

/// Both return an error text, or nothing.
std::string CheckWhole(const std::string& value, int low, int high) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [parsed_until, error] = std::from_chars(value.data(), end, number);
  if (error == std::errc() && parsed_until == end && number >= low && number <= high) return "";
  return Format("{} is not valid: expected an integer from {} to {}", Quoted(value), low, high);
}

Result<Duration> ParseSeconds(std::string_view flag, const std::string& value, double low) {
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto [parsed_until, error] = std::from_chars(value.data(), end, seconds);
  if (error != std::errc() || parsed_until != end || !std::isfinite(seconds) || seconds < low ||
      seconds > kMaxSeconds) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} {} is not valid: expected seconds from {} to {}", flag, Quoted(value),
                         low, kMaxSeconds));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Result<RankSet> ParseRanks(std::string_view flag, const std::string& text) {
  RankSet set;
  const Status bad(
      StatusCode::kInvalidArgument,
      Format("{} {} is not valid: expected ranks like 0 or 0,2 or 0,4-7", flag, Quoted(text)));
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const std::size_t dash = part.find('-');
    const std::string first = part.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : part.substr(dash + 1);
    if (!CheckWhole(first, 0, kMaxRanks - 1).empty() ||
        !CheckWhole(last, 0, kMaxRanks - 1).empty() || std::stoi(first) > std::stoi(last)) {
      return bad;
    }
    set.ranges.push_back({std::stoi(first), std::stoi(last)});
    at = comma + 1;
  }
  return set;
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

/// "LOG-LEVEL" for "log level": how the help names the value of an option.
std::string ValueName(std::string_view type_name) {
  std::string name(type_name);
  for (char& c : name) {
    if (c == ' ') c = '-';
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return name;
}

/// What the library fills in; turned into Options afterwards.
struct Raw {
  using Text = std::optional<std::string>;
  Text num_proc, hosts, hostfile, output, show, stdin_rank, timeout, grace, signal_grace, log_dir;
  Text config_file;
  std::vector<std::string> exports;
  std::vector<std::string> interfaces;
  bool check_build = false, dry_run = false, version = false, timestamps = false, gloo = false;
  bool drop_in = false, json = false;
  int verbose = 0;
  struct Knob {
    KnobFlag flag;
    Text text;
    bool on = false;
    CLI::Option* option = nullptr;
  };
  std::vector<std::unique_ptr<Knob>> knobs;  // the library keeps their addresses
  std::vector<std::unique_ptr<std::vector<std::string>>> ignored_values;
  std::vector<CLI::Option*> no_effect;  // as kNoEffectOptions
  std::vector<CLI::Option*> not_yet;    // as kNotYetOptions
};

CLI::Option* AddText(CLI::App* app, const std::string& names, std::optional<std::string>* value,
                     const std::string& value_name, std::string_view help) {
  const auto set = [value](const std::string& text) { *value = text; };
  return app->add_option_function<std::string>(names, set, Wrap(help))
      ->type_name(value_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Option* AddSwitch(CLI::App* app, const std::string& names, bool* value,
                       std::string_view help) {
  return app->add_flag(names, *value, Wrap(help))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void AddJobOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Job");
  AddText(app, "-n,--num-proc", &raw->num_proc, "N", "Number of ranks.");
  AddText(app, "-H,--hosts", &raw->hosts, "HOST:SLOTS,...",
          "Where ranks run, filled in order. So far every host must be this machine.");
  AddText(app, "--hostfile", &raw->hostfile, "FILE",
          "The same from a file: one 'host slots=N' or 'host:N' per line; # starts a comment.");
  app->add_option("-x,--export", raw->exports,
                  Wrap("Set a variable for all ranks; may be repeated. All variables of hvlrun's "
                       "own environment are passed on anyway, so a NAME alone, or a pattern like "
                       "'NCCL_*', only warns when there is none."))
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
  AddSwitch(app, "--drop-in", &raw->drop_in,
            "Scripts that import horovod find horovodlite under that name.");
  AddText(app, "--config-file", &raw->config_file, "FILE",
          "Options from a YAML file with the keys of horovodrun; the command line wins.");
  app->add_option("--network-interfaces,--network-interface", raw->interfaces,
                  Wrap("Interfaces for NCCL and Gloo of torch (NCCL_SOCKET_IFNAME, "
                       "GLOO_SOCKET_IFNAME). Horovodlite itself needs none on one machine."))
      ->type_name("NAME,...")
      ->allow_extra_args(false);
}

void AddOutputOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Output and input");
  AddText(app, "--output", &raw->output, "tag|none",
          "tag (default): lines begin with [rank]<stdout>: or [rank]<stderr>:; none: as they are.");
  AddSwitch(app, "--prefix-timestamp,--prefix-output-with-timestamp", &raw->timestamps,
            "Begin the tag with the time, also in the files of --log-dir.");
  AddText(app, "--show", &raw->show, "RANKS",
          "Show only these ranks, e.g. 0 or 0,4-7. Log files and the failure summary have all.");
  AddText(app, "--log-dir,--output-filename", &raw->log_dir, "DIR",
          "Also write DIR/rank.N/stdout and DIR/rank.N/stderr, byte for byte.");
  AddText(app, "--stdin", &raw->stdin_rank, "RANK|none",
          "The rank that reads hvlrun's standard input; the others read nothing. Default: none.");
}

void AddEndOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("How a job ends");
  AddText(app, "--timeout", &raw->timeout, "SECONDS",
          "Stop the job when it has not ended after this time; exit status 124.");
  AddText(app, "--grace", &raw->grace, "SECONDS",
          "Time between asking ranks to end (SIGTERM) and SIGKILL. Default: 1.5 after a failure, "
          "30 after a signal to hvlrun, so that ranks can write a checkpoint.");
  AddText(app, "--signal-grace", &raw->signal_grace, "SECONDS", "The second of these alone.");
}

void AddInfoOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Information");
  AddSwitch(app, "--dry-run", &raw->dry_run, "Show ranks, command and environment; start nothing.");
  AddSwitch(app, "--check-build", &raw->check_build, "Show what this installation can do.");
  AddSwitch(app, "--json", &raw->json, "With --check-build: as JSON.");
  app->add_flag("-v,--verbose", raw->verbose,
                Wrap("Tell what hvlrun does. Alone, as in horovodrun: --version."));
  AddSwitch(app, "--version", &raw->version, "Show the version.");
  app->set_help_flag("-h,--help", "Show this help.")->group("Information");
}

void AddKnobs(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Runtime (each stands for an environment variable of the ranks)");
  for (KnobFlag& flag : KnobFlags()) {
    auto knob = std::make_unique<Raw::Knob>();
    const std::string help = Format("{} [{}]", flag.knob.help, flag.knob.env_name);
    std::string names = flag.names;
    if (flag.knob.flag == "--log-without-timestamp") {
      names += ",--log-hide-timestamp,!--no-log-hide-timestamp";
    }
    const std::string value_name =
        flag.knob.flag.ends_with("-mb") ? "MIB" : ValueName(flag.knob.type_name);
    knob->option = flag.is_switch ? AddSwitch(app, names, &knob->on, help)
                                  : AddText(app, names, &knob->text, value_name, help);
    knob->flag = std::move(flag);
    raw->knobs.push_back(std::move(knob));
  }
}

CLI::Option* AddCompat(CLI::App* app, Raw* raw, const CompatOption& row, const std::string& help) {
  const std::string text = Wrap(help);
  if (row.value == CompatValue::kNone) return app->add_flag(std::string(row.names), text);
  raw->ignored_values.push_back(std::make_unique<std::vector<std::string>>());
  const bool pair = row.value == CompatValue::kTwoCounts;
  return app->add_option(std::string(row.names), *raw->ignored_values.back(), text)
      ->type_name(pair ? "MIN MAX" : "VALUE")
      ->expected(pair ? 2 : 1);
}

void AddCompatOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Accepted from horovodrun, without effect");
  AddSwitch(app, "--gloo", &raw->gloo, "horovodlite always starts ranks this way.");
  for (const CompatOption& row : kNoEffectOptions) {
    raw->no_effect.push_back(AddCompat(app, raw, row, Format("{}.", row.reason)));
  }
  app->option_defaults()->group("Known from horovodrun, not supported yet");
  for (const CompatOption& row : kNotYetOptions) {
    raw->not_yet.push_back(AddCompat(app, raw, row, Format("{}.", row.reason)));
  }
}

Status UnknownOption(const CLI::App& app, const std::string& word) {
  std::string nearest;
  std::size_t limit = std::max<std::size_t>(2, word.size() / 4);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::string full = "--" + name;
      // A name that breaks off early is one mistake, however much is missing.
      const std::size_t distance = full.starts_with(word) ? 1 : config::EditDistance(word, full);
      if (distance > limit) continue;
      nearest = "--" + name;
      limit = distance == 0 ? 0 : distance - 1;
    }
  }
  return Invalid(nearest.empty() ? Format("unknown option {}; hvlrun --help shows all", word)
                                 : Format("unknown option {}; did you mean {}?", word, nearest));
}

struct SplitArguments {
  std::vector<std::string> options;
  std::vector<std::string> command;
};

/// Cuts where the command begins: at the first word that is neither an option nor the value of one,
/// or after "--". The library never sees the command, so nothing in it can be taken for an option.
Result<SplitArguments> Split(const CLI::App& app, const std::vector<std::string>& arguments) {
  SplitArguments split;
  std::size_t i = 0;
  while (i < arguments.size()) {
    std::string word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word.front() != '-') break;
    const std::size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    for (const Respelling& row : kSingleDash) {
      if (name == row.single_dash) name = std::string(row.name);
    }
    const bool is_long = name.starts_with("--");
    const bool has_value = is_long ? equals != std::string::npos : name.size() > 2;
    const CLI::Option* option = app.get_option_no_throw(is_long ? name : name.substr(0, 2));
    if (option == nullptr) return UnknownOption(app, name);
    split.options.push_back(equals == std::string::npos ? name : name + word.substr(equals));
    ++i;
    if (has_value || option->get_items_expected_max() == 0) continue;
    const int value_count = option->get_items_expected_max() == 2 ? 2 : 1;
    for (int v = 0; v < value_count; ++v, ++i) {
      if (i == arguments.size()) return Invalid(Format("{} needs a value", word));
      split.options.push_back(arguments[i]);
    }
  }
  split.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return split;
}

Status ReadExports(const std::vector<std::string>& exports, Options* options) {
  for (const std::string& text : exports) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.empty()) return Invalid(Format("-x '{}': expected NAME or NAME=VALUE", text));
    if (equals != std::string::npos && IsPattern(name)) {
      return Invalid(Format("-x '{}': a pattern cannot be given a value", text));
    }
    if (IsIdentityVariable(name)) {
      return Invalid(Format("-x {}: hvlrun itself sets {} for each rank", text, name));
    }
    if (equals == std::string::npos) {
      options->passed_on.push_back(name);
    } else {
      options->exports.push_back({name, text.substr(equals + 1)});
    }
  }
  return Status::Ok();
}

Status ReadKnobs(const Raw& raw, Options* options) {
  for (const std::unique_ptr<Raw::Knob>& knob : raw.knobs) {
    if (knob->option->count() == 0) continue;
    const std::string value =
        knob->flag.is_switch ? (knob->on ? "1" : "0") : knob->text.value_or("");
    HVL_ASSIGN_OR_RETURN(const std::vector<EnvSetting> settings, KnobSettings(knob->flag, value));
    options->knobs.insert(options->knobs.end(), settings.begin(), settings.end());
  }
  return Status::Ok();
}

Status ReadTimes(const Raw& raw, Options* options) {
  if (raw.timeout) {
    HVL_ASSIGN_OR_RETURN(options->timeout, ParseSeconds("--timeout", *raw.timeout, 0.001));
  }
  if (raw.grace) {
    HVL_ASSIGN_OR_RETURN(options->failure_grace, ParseSeconds("--grace", *raw.grace, 0));
    options->signal_grace = options->failure_grace;
  }
  if (raw.signal_grace) {
    HVL_ASSIGN_OR_RETURN(options->signal_grace,
                         ParseSeconds("--signal-grace", *raw.signal_grace, 0));
  }
  return Status::Ok();
}

Status ReadOutput(const Raw& raw, Options* options) {
  const std::string output = raw.output.value_or("tag");
  if (output != "tag" && output != "none") {
    return Invalid(Format("--output {} is not valid: expected tag or none", Quoted(output)));
  }
  options->tag_lines = output == "tag";
  options->timestamps = raw.timestamps;
  options->log_dir = raw.log_dir.value_or("");
  if (raw.log_dir && raw.log_dir->empty()) return Invalid("--log-dir '' names no folder");
  if (raw.show) {
    HVL_ASSIGN_OR_RETURN(options->shown, ParseRanks("--show", *raw.show));
  }
  if (raw.stdin_rank && *raw.stdin_rank != "none") {
    const std::string problem = CheckWhole(*raw.stdin_rank, 0, kMaxRanks - 1);
    if (!problem.empty()) return Invalid(Format("--stdin {}, or none", problem));
    options->stdin_rank = std::stoi(*raw.stdin_rank);
  }
  return Status::Ok();
}

struct GivenOption {
  const CompatOption* row = nullptr;
  bool switched_off = false;  // what does not exist is off, so there is nothing to say
};

/// What the command line says of `rows`: the given ones, with their values checked.
Result<std::vector<GivenOption>> GivenOf(std::span<const CompatOption> rows,
                                         const std::vector<CLI::Option*>& parsed) {
  std::vector<GivenOption> given;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (parsed[i]->count() == 0) continue;
    for (const std::string& text : parsed[i]->results()) {
      HVL_RETURN_IF_ERROR(CheckCompatValue(parsed[i]->get_name(), rows[i].value, text));
    }
    const bool is_switch = rows[i].value == CompatValue::kNone;
    given.push_back({&rows[i], is_switch && parsed[i]->results().back() == "false"});
  }
  return given;
}

Status ReadCompat(const Raw& raw, Options* options) {
  HVL_ASSIGN_OR_RETURN(const auto not_yet, GivenOf(kNotYetOptions, raw.not_yet));
  if (!not_yet.empty()) {
    return NotSupportedYet(CompatName(*not_yet.front().row), *not_yet.front().row);
  }
  HVL_ASSIGN_OR_RETURN(const auto no_effect, GivenOf(kNoEffectOptions, raw.no_effect));
  for (const GivenOption& option : no_effect) {
    const std::string name = CompatName(*option.row);
    options->given.push_back(name);
    if (!option.switched_off) options->warnings.push_back(NoEffect(name, *option.row));
  }
  if (raw.gloo) options->given.emplace_back("--gloo");
  return Status::Ok();
}

/// What a job needs, once everything else is known to be well-formed.
Status ReadJob(const Raw& raw, Options* options) {
  if (raw.num_proc) {
    const std::string problem = CheckWhole(*raw.num_proc, 1, kMaxRanks);
    if (!problem.empty()) return Invalid(Format("-np {}", problem));
    options->num_proc = std::stoi(*raw.num_proc);
  }
  options->drop_in = raw.drop_in;
  options->config_file = raw.config_file;
  options->json = raw.json;
  if (raw.json && !raw.check_build) return Invalid("--json goes with --check-build only");
  options->hosts = raw.hosts;
  options->hostfile = raw.hostfile;
  if (options->action != Options::Action::kRun && options->action != Options::Action::kDryRun) {
    return Status::Ok();
  }
  if (options->hosts && options->hostfile) {
    return Invalid("-H and --hostfile both name the hosts; give one of them");
  }
  if (!raw.num_proc) {
    return Invalid(
        "the number of ranks is missing; give it with -np, e.g. hvlrun -np 2 "
        "python train.py (hvlrun --help shows all options)");
  }
  if (options->command.empty()) {
    return Invalid("the command is missing, e.g. hvlrun -np 2 python train.py");
  }
  if (options->stdin_rank.value_or(0) >= options->num_proc) {
    return Invalid(Format("--stdin {}: there is no such rank; the ranks are 0 to {}",
                          *options->stdin_rank, options->num_proc - 1));
  }
  return Status::Ok();
}

void ChooseAction(const Raw& raw, Options* options) {
  const bool bare_v = raw.verbose > 0 && !raw.num_proc && options->command.empty();
  if (raw.dry_run) options->action = Options::Action::kDryRun;
  if (raw.check_build) options->action = Options::Action::kCheckBuild;
  if (raw.version || (bare_v && !raw.check_build)) options->action = Options::Action::kVersion;
}

Result<Options> Convert(const Raw& raw, std::vector<std::string> command) {
  Options options;
  options.command = std::move(command);
  options.verbose = raw.verbose > 0;
  ChooseAction(raw, &options);
  HVL_RETURN_IF_ERROR(ReadCompat(raw, &options));
  HVL_RETURN_IF_ERROR(ReadExports(raw.exports, &options));
  HVL_RETURN_IF_ERROR(ReadKnobs(raw, &options));
  HVL_RETURN_IF_ERROR(ReadTimes(raw, &options));
  HVL_RETURN_IF_ERROR(ReadOutput(raw, &options));
  HVL_RETURN_IF_ERROR(ReadJob(raw, &options));
  for (const std::string& list : raw.interfaces) {
    for (std::string& name : SplitCommas(list)) options.interfaces.push_back(std::move(name));
  }
  return options;
}

}  // namespace

bool RankSet::Contains(int rank) const {
  return ranges.empty() || std::any_of(ranges.begin(), ranges.end(), [rank](const Range& range) {
           return rank >= range.first && rank <= range.last;
         });
}

Result<Options> ParseOptions(const std::vector<std::string>& arguments) {
  CLI::App app(std::string(kDescription), "hvlrun");
  Raw raw;
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(std::string(kFooter));
  AddJobOptions(&app, &raw);
  AddOutputOptions(&app, &raw);
  AddEndOptions(&app, &raw);
  AddKnobs(&app, &raw);
  AddInfoOptions(&app, &raw);
  AddCompatOptions(&app, &raw);
  HVL_ASSIGN_OR_RETURN(SplitArguments split, Split(app, arguments));
  std::reverse(split.options.begin(), split.options.end());  // the library takes them from the back
  try {
    app.parse(split.options);
  } catch (const CLI::CallForHelp&) {
    Options options;
    options.action = Options::Action::kHelp;
    options.help = CLI::detail::find_and_replace(app.help(), "\n\n\n", "\n\n");
    return options;
  } catch (const CLI::Error& error) {
    return Invalid(error.what());
  }
  return Convert(raw, std::move(split.command));
}

}  // namespace hvl::launcher
