// Words as a shell takes them.
#pragma once

#include <string>

namespace hvl::launcher {

/// `word` as one could type it into a shell, quoted where that is needed.
std::string ShellWord(const std::string& word);

}  // namespace hvl::launcher
