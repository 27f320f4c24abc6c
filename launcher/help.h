// The text of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace hvl::launcher {

// The command-line library knows -x and --long only; these spellings of horovodrun are rewritten
// before it sees them.
struct Respelling {
  std::string_view single_dash;
  std::string_view name;
};
inline constexpr auto kSingleDash = std::to_array<Respelling>({
    {"-np", "--num-proc"},
    {"-hostfile", "--hostfile"},
    {"-cb", "--check-build"},
    {"-prefix-timestamp", "--prefix-timestamp"},
});

/// What stands before and behind the options.
std::string_view HelpDescription();
std::string_view HelpFooter();

/// Breaks a help text into lines, because the library does not.
std::string Wrap(std::string_view text);

std::shared_ptr<CLI::Formatter> MakeHelpFormatter();

}  // namespace hvl::launcher
