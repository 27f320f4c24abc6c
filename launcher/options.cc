#include "launcher/options.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/config/env_names.h"
#include "launcher/compat_options.h"
#include "launcher/errors.h"
#include "launcher/help.h"
#include "launcher/knob_flags.h"
#include "launcher/option_values.h"
#include "launcher/rank_env.h"
#include "launcher/raw_options.h"

namespace hvl::launcher {
namespace {

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

/// The long name of what horovodrun writes with a single dash, or the name itself.
std::string Respelled(const std::string& name) {
  for (const Respelling& row : kSingleDash) {
    if (name == row.single_dash) return std::string(row.name);
  }
  return name;
}

/// The option that the word before any '=' names; null when none has that name. Short options may
/// have their value attached.
const CLI::Option* FindOption(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name.starts_with("--") ? name : name.substr(0, 2));
}

/// A value that is itself an option is a value that was forgotten.
Status CheckValue(const CLI::App& app, const std::string& option, const std::string& value) {
  if (value.size() < 2 || value.front() != '-') return Status::Ok();
  if (FindOption(app, Respelled(value.substr(0, value.find('=')))) == nullptr) return Status::Ok();
  return Invalid(Format("{} needs a value, and {} is an option", option, value));
}

/// The value of a switch.
Status CheckSwitchValue(const std::string& option, const std::string& value) {
  try {
    static_cast<void>(CLI::detail::to_flag_value(value));
    return Status::Ok();
  } catch (const std::invalid_argument&) {
    return Invalid(Format("{} {} is not valid: expected true or false", option, Quoted(value)));
  }
}

/// Whether the value is made of options, of another program: it begins with a dash like ours.
bool TakesOptions(const CLI::Option& option) {
  return option.check_lname("mpi-args") || option.check_lname("binding-args");
}

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
    const std::string name = Respelled(word.substr(0, equals));
    const bool is_long = name.starts_with("--");
    const bool has_value = is_long ? equals != std::string::npos : name.size() > 2;
    const CLI::Option* const option = FindOption(app, name);
    if (option == nullptr) return UnknownOption(app, name);
    split.options.push_back(equals == std::string::npos ? name : name + word.substr(equals));
    ++i;
    const bool is_switch = option->get_items_expected_max() == 0;
    if (is_switch && is_long && has_value) {
      HVL_RETURN_IF_ERROR(CheckSwitchValue(name, word.substr(equals + 1)));
    }
    if (has_value || is_switch) continue;
    if (TakesOptions(*option) && i < arguments.size()) {
      split.options.back() += "=" + arguments[i++];
      continue;
    }
    const int value_count = option->get_items_expected_max() == 2 ? 2 : 1;
    for (int v = 0; v < value_count; ++v, ++i) {
      if (i == arguments.size()) return Invalid(Format("{} needs a value", word));
      HVL_RETURN_IF_ERROR(CheckValue(app, word, arguments[i]));
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
  if (raw.max_restarts) {
    const std::string problem = CheckWhole(*raw.max_restarts, 0, kMaxRestarts);
    if (!problem.empty()) return Invalid(Format("--max-restarts {}", problem));
    options->max_restarts = std::stoi(*raw.max_restarts);
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
  const Raw::Text& log_dir = raw.log_dir ? raw.log_dir : raw.output_filename;
  options->log_dir = log_dir.value_or("");
  options->log_option = raw.log_dir ? "--log-dir" : "--output-filename";
  if (log_dir && log_dir->empty()) {
    return Invalid(Format("{} '' names no folder", options->log_option));
  }
  if (raw.show) {
    HVL_ASSIGN_OR_RETURN(options->shown, ParseRanks("--show", *raw.show));
  }
  options->fold = raw.fold;
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

Status ReadMpi(const Raw& raw, Options* options) {
  options->mpi.wanted = raw.mpi;
  if (raw.mpi) options->given.emplace_back("--mpi");
  HVL_ASSIGN_OR_RETURN(const auto of_mpi, GivenOf(kMpiOptions, raw.of_mpi));
  for (const GivenOption& option : of_mpi) {
    const std::string name = CompatName(*option.row);
    options->given.push_back(name);
    if (option.switched_off) continue;
    options->mpi.warnings.push_back(NoEffect(name, *option.row));
    const std::size_t place = static_cast<std::size_t>(option.row - kMpiOptions.data());
    TakeMpiOption(name, raw.of_mpi[place]->results().back(), &options->mpi);
  }
  return Status::Ok();
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
  if (raw.gloo && raw.mpi) return Invalid("--gloo and --mpi exclude each other; give one of them");
  if (raw.gloo) options->given.emplace_back("--gloo");
  return ReadMpi(raw, options);
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
  options->preflight = raw.preflight;
  if (raw.json && !raw.check_build && !raw.doctor) {
    return Invalid("--json goes with --check-build and --doctor only");
  }
  options->hosts = raw.hosts;
  options->hostfile = raw.hostfile;
  if (options->action == Options::Action::kJoin) {
    options->join = *raw.join;
    if (options->command.empty()) return Status::Ok();
    return Invalid("--join takes no command: the hvlrun that it joins has one");
  }
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

Status ReadBinding(const Raw& raw, Options* options) {
  options->report_bindings = raw.report_bindings;
  if (!raw.bind) return Status::Ok();
  const std::optional<BindPolicy> policy = ParseBindPolicy(*raw.bind);
  if (!policy) {
    return Invalid(
        Format("--bind {} is not valid: expected auto, none, core or numa", Quoted(*raw.bind)));
  }
  options->bind = *policy;
  return Status::Ok();
}

Status ReadStarter(const Raw& raw, Options* options) {
  StarterOptions* starter = &options->starter;
  options->starter_given = raw.rsh.has_value();
  if (raw.rsh) {
    if (raw.rsh->find_first_not_of(" \t") == std::string::npos) {
      return Invalid("--rsh '' names no program; expected ssh, srun, or another one");
    }
    starter->rsh = *raw.rsh;
  }
  if (raw.ssh_port) {
    constexpr int kMaxPort = 65535;
    const std::string problem = CheckWhole(*raw.ssh_port, 1, kMaxPort);
    if (!problem.empty()) return Invalid(Format("--ssh-port {}", problem));
    starter->ssh_port = std::stoi(*raw.ssh_port);
  }
  starter->ssh_identity_file = raw.ssh_identity_file.value_or("");
  starter->ssh_accept_new = raw.ssh_accept_new;
  starter->remote_hvlrun = raw.remote_hvlrun.value_or("");
  options->head_address = raw.head_address.value_or("");
  options->listen = raw.listen.value_or("");
  if (raw.wait_for) {
    const std::string problem = CheckWhole(*raw.wait_for, 1, kMaxRanks);
    if (!problem.empty()) return Invalid(Format("--wait-for {}", problem));
    options->wait_for = std::stoi(*raw.wait_for);
  }
  if (options->wait_for > 0 && (options->hosts || options->hostfile || raw.rsh)) {
    return Invalid(
        "--wait-for takes the hosts that come; -H, --hostfile and --rsh do not go with it");
  }
  if (raw.listen && options->wait_for == 0) return Invalid("--listen goes with --wait-for only");
  return Status::Ok();
}

void ChooseAction(const Raw& raw, Options* options) {
  const bool bare_v = raw.verbose > 0 && !raw.num_proc && options->command.empty();
  if (raw.dry_run) options->action = Options::Action::kDryRun;
  if (raw.doctor) options->action = Options::Action::kDoctor;
  if (raw.check_build) options->action = Options::Action::kCheckBuild;
  if (raw.join) options->action = Options::Action::kJoin;
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
  HVL_RETURN_IF_ERROR(ReadBinding(raw, &options));
  HVL_RETURN_IF_ERROR(ReadStarter(raw, &options));
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
  CLI::App app(std::string(HelpDescription()), "hvlrun");
  Raw raw;
  AddOptions(&app, &raw);
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
