#include "launcher/raw_options.h"

#include <string_view>

#include "csrc/base/str.h"
#include "launcher/compat_options.h"
#include "launcher/help.h"

namespace hvl::launcher {
namespace {

/// "LOG-LEVEL" for "log level": how the help names the value of an option.
std::string ValueName(std::string_view type_name) {
  std::string name(type_name);
  for (char& c : name) {
    if (c == ' ') c = '-';
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return name;
}

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
          "Where ranks run, filled in order: [user@]host:slots; node[01-04]:8 stands for four "
          "hosts. Other machines are reached by ssh.");
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
  AddText(
      app, "--bind", &raw->bind, "auto|none|core|numa",
      "Processors of each rank. core: its share of the cores; numa: the cores of one NUMA node; "
      "auto (default): numa where all nodes get the same number of ranks, else none. With more "
      "ranks than cores nothing is bound.");
  AddSwitch(app, "--report-bindings", &raw->report_bindings,
            "Tell at the start which processors each rank may use.");
  app->add_option(
         "--network-interfaces,--network-interface", raw->interfaces,
         Wrap("Interfaces by which hosts reach each other (HVL_NETWORK), also for NCCL and "
              "Gloo of torch (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME). Horovodlite "
              "itself needs none on one machine."))
      ->type_name("NAME,...")
      ->allow_extra_args(false);
}

void AddHostOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Other hosts");
  AddText(app, "--rsh", &raw->rsh, "ssh|srun|CMD",
          "How a host is reached: ssh (default), srun of Slurm, or any program with its options, "
          "which is called as CMD host command.");
  AddText(app, "-p,--ssh-port", &raw->ssh_port, "PORT", "Port of the hosts' ssh.");
  AddText(app, "-i,--ssh-identity-file", &raw->ssh_identity_file, "FILE",
          "Private key that ssh logs in with.");
  AddSwitch(app, "--ssh-accept-new", &raw->ssh_accept_new,
            "Let ssh accept and note the keys of hosts that it does not know yet. Without it a "
            "host's key must be known, as your ssh is set up.");
  AddText(app, "--remote-hvlrun", &raw->remote_hvlrun, "PATH",
          "Where hvlrun is on the hosts. Default: the same path as here.");
  AddText(app, "--wait-for", &raw->wait_for, "M",
          "Call nobody: wait until M agents have come by themselves (hvlrun --join), and share the "
          "ranks out evenly. HVL_SECRET_FILE names the file with the secret that all have.");
  AddText(app, "--listen", &raw->listen, "[ADDRESS:]PORT",
          "Where agents come to. Default: port 29400 of this machine's address.");
  AddText(app, "--join", &raw->join, "HOST:PORT",
          "Be an agent for the hvlrun that waits there, until its job ends. Takes no command.");
  AddText(app, "--head-address", &raw->head_address, "ADDRESS",
          "Address of this machine by which ranks on other hosts find hvlrun. Default: that of "
          "--network-interfaces, else the one from which the hosts are reached.");
}

void AddOutputOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Output and input");
  AddText(app, "--output", &raw->output, "tag|none",
          "tag (default): lines begin with [rank]<stdout>: or [rank]<stderr>:; none: as they are.");
  AddSwitch(app, "--prefix-timestamp,--prefix-output-with-timestamp", &raw->timestamps,
            "Begin the tag with the time, also in the files of --log-dir.");
  AddText(app, "--show", &raw->show, "RANKS",
          "Show only these ranks, e.g. 0 or 0,4-7. Log files and the failure summary have all.");
  AddSwitch(app, "--fold", &raw->fold,
            "Show a line that several ranks print within a quarter of a second once, as "
            "[0, 2-5]<stdout>: or [all 8]<stdout>:. Log files have it for each rank.");
  CLI::Option* log_dir =
      AddText(app, "--log-dir", &raw->log_dir, "DIR",
              "Also write DIR/rank.N/stdout and DIR/rank.N/stderr, byte for byte.");
  AddText(app, "--output-filename", &raw->output_filename, "DIR",
          "The same; horovodrun's name for it.")
      ->excludes(log_dir);
  AddText(app, "--stdin", &raw->stdin_rank, "RANK|none",
          "The rank that reads hvlrun's standard input; the others read nothing. Default: none.");
}

void AddStartOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Before a job starts");
  AddSwitch(app, "--preflight", &raw->preflight,
            "Examine this machine as --doctor does: tell what could be better, and refuse to start "
            "where no job can run.");
}

void AddEndOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("How a job ends");
  AddText(app, "--timeout", &raw->timeout, "SECONDS",
          "Stop the job when it has not ended after this time; exit status 124.");
  AddText(app, "--max-restarts", &raw->max_restarts, "N",
          "After a failure start all ranks again, up to N times; they find the number of the "
          "restart in HVL_RUN_RESTART_COUNT. Default: 0.");
  AddText(app, "--grace", &raw->grace, "SECONDS",
          "Time between asking ranks to end (SIGTERM) and SIGKILL. Default: 1.5 after a failure, "
          "30 after a signal to hvlrun, so that ranks can write a checkpoint.");
  AddText(app, "--signal-grace", &raw->signal_grace, "SECONDS", "The second of these alone.");
}

void AddInfoOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Information");
  AddSwitch(app, "--dry-run", &raw->dry_run, "Show ranks, command and environment; start nothing.");
  AddSwitch(app, "--check-build", &raw->check_build, "Show what this installation can do.");
  AddSwitch(app, "--doctor", &raw->doctor,
            "Examine this machine and the Python of the command, if there is one, and tell what is "
            "wrong and what cures it. Exit status 1 when no job can run.");
  AddSwitch(app, "--json", &raw->json, "With --check-build and --doctor: as JSON.");
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

/// What each does is in the help of horovodrun, and in docs/launcher.md.
std::string_view MpiHelp(const CompatOption& row) {
  const std::string name = CompatName(row);
  if (name == "--mpi-args") return "More words for the command line of MPI's launcher.";
  if (name == "--binding-args") return "The same, instead of what --bind stands for.";
  if (name == "--tcp") return "Let Open MPI use TCP only.";
  return "Calls MPI from one thread only.";
}

void AddMpiOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Start by MPI (the others have no effect without --mpi)");
  AddSwitch(app, "--mpi", &raw->mpi,
            "Become mpirun (or mpiexec, or srun) of PATH, which starts the ranks; MPI also carries "
            "the data, unless HVL_CPU_OPERATIONS says otherwise. --dry-run shows the command.");
  for (const CompatOption& row : kMpiOptions) {
    raw->of_mpi.push_back(AddCompat(app, raw, row, std::string(MpiHelp(row))));
  }
}

void AddCompatOptions(CLI::App* app, Raw* raw) {
  app->option_defaults()->group("Accepted from horovodrun, without effect");
  AddSwitch(app, "--gloo", &raw->gloo, "hvlrun starts the ranks itself, unless there is --mpi.");
  for (const CompatOption& row : kNoEffectOptions) {
    raw->no_effect.push_back(AddCompat(app, raw, row, Format("{}.", row.reason)));
  }
  app->option_defaults()->group("Known from horovodrun, not supported yet");
  for (const CompatOption& row : kNotYetOptions) {
    raw->not_yet.push_back(AddCompat(app, raw, row, Format("{}.", row.reason)));
  }
}

}  // namespace

void AddOptions(CLI::App* app, Raw* raw) {
  app->formatter(MakeHelpFormatter());
  app->footer(std::string(HelpFooter()));
  AddJobOptions(app, raw);
  AddHostOptions(app, raw);
  AddMpiOptions(app, raw);
  AddOutputOptions(app, raw);
  AddStartOptions(app, raw);
  AddEndOptions(app, raw);
  AddKnobs(app, raw);
  AddInfoOptions(app, raw);
  AddCompatOptions(app, raw);
}

}  // namespace hvl::launcher
