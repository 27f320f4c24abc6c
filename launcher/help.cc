#include "launcher/help.h"

#include <algorithm>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

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
    "  hvlrun -np 8 --bind core python train.py        each rank on its own cores\n"
    "  hvlrun -np 8 --max-restarts 3 python train.py   start again after a failure\n"
    "  hvlrun --doctor                                 examine this machine\n"
    "  hvlrun --check-build                            show what this installation can do";

constexpr std::size_t kHelpColumn = 36;
constexpr std::size_t kHelpWidth = 64;

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

}  // namespace

std::string_view HelpDescription() { return kDescription; }
std::string_view HelpFooter() { return kFooter; }

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

std::shared_ptr<CLI::Formatter> MakeHelpFormatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace hvl::launcher
