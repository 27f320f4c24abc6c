// All options of hvlrun as the command-line library knows them: names, help, and where their texts
// go.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/knob_flags.h"

namespace hvl::launcher {

/// What the library fills in; turned into Options afterwards.
struct Raw {
  using Text = std::optional<std::string>;
  Text num_proc, hosts, hostfile, output, show, stdin_rank, timeout, grace, signal_grace, log_dir,
      output_filename;
  Text config_file, bind, max_restarts;
  Text rsh, ssh_port, ssh_identity_file, remote_hvlrun, head_address, wait_for, listen, join;
  std::vector<std::string> exports;
  std::vector<std::string> interfaces;
  bool check_build = false, dry_run = false, version = false, timestamps = false, gloo = false,
       mpi = false;
  bool fold = false, drop_in = false, json = false, report_bindings = false, doctor = false,
       preflight = false, ssh_accept_new = false;
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
  std::vector<CLI::Option*> of_mpi;     // as kMpiOptions
  std::vector<CLI::Option*> not_yet;    // as kNotYetOptions
};

/// Fills `app`, which then writes into `raw`.
void AddOptions(CLI::App* app, Raw* raw);

}  // namespace hvl::launcher
