// The command line of hvlrun as values. Parsing is pure: arguments in, options out.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "horovodlite/status.h"
#include "launcher/binding.h"
#include "launcher/env_block.h"
#include "launcher/starter.h"

namespace hvl::launcher {

/// Which ranks an option speaks of: "0,3-5"; empty = all.
struct RankSet {
  struct Range {
    int first = 0;
    int last = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;

  bool Contains(int rank) const;
};

/// --mpi: the ranks are started by MPI's launcher (mpi_start.h).
struct MpiChoice {
  bool wanted = false;
  std::string args;                   ///< --mpi-args
  std::string binding_args;           ///< --binding-args: instead of what --bind stands for
  bool tcp = false;                   ///< --tcp
  bool threads_disable = false;       ///< --mpi-threads-disable
  std::vector<std::string> warnings;  ///< that these have no effect, where MPI is not wanted
};

struct Options {
  enum class Action : std::uint8_t { kRun, kDryRun, kCheckBuild, kDoctor, kJoin, kHelp, kVersion };
  Action action = Action::kRun;
  std::string help;  ///< filled for kHelp

  int num_proc = 0;
  std::optional<std::string> hosts;
  std::optional<std::string> hostfile;
  StarterOptions starter;
  bool starter_given = false;  ///< --rsh
  MpiChoice mpi;
  std::string head_address;
  int wait_for = 0;    ///< agents that come by themselves; 0 = they are called
  std::string listen;  ///< where they come to; "" = the usual port
  std::string join;    ///< of kJoin: where the head is
  std::optional<std::string> config_file;
  std::vector<std::string> command;

  std::vector<EnvSetting> exports;     ///< -x NAME=value
  std::vector<std::string> passed_on;  ///< -x NAME or pattern: is passed on anyhow
  std::vector<EnvSetting> knobs;       ///< environment that the knobs' flags stand for
  BindPolicy bind = BindPolicy::kAuto;
  bool report_bindings = false;
  std::vector<std::string> interfaces;  ///< --network-interfaces

  bool tag_lines = true;
  bool timestamps = false;
  std::string log_dir;     ///< "" = no log files
  std::string log_option;  ///< the name of the option that has given it
  RankSet shown;
  bool fold = false;

  std::optional<int> stdin_rank;
  std::optional<Duration> timeout;
  int max_restarts = 0;  ///< of the whole job after a failure
  Duration failure_grace = std::chrono::milliseconds(1500);
  Duration signal_grace = std::chrono::seconds(30);

  bool verbose = false;
  bool drop_in = false;
  bool json = false;       ///< for kCheckBuild and kDoctor
  bool preflight = false;  ///< examine the machine before the start

  std::vector<std::string> given;     ///< options without effect that were given, by long name
  std::vector<std::string> warnings;  ///< what is to be said about them
};

/// `arguments` without the program's name. InvalidArgument and NotSupported carry one line that
/// says what to do.
Result<Options> ParseOptions(const std::vector<std::string>& arguments);

}  // namespace hvl::launcher
